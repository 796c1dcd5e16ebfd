"""Word pools of our own choosing: lower case, four letters or more, none contained in another.

So no word can be found inside another one when answers are looked for as substrings.
"""


def split(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


PEOPLE = split("""
acrobat actor apprentice architect archivist astronomer auditor banker beekeeper blacksmith boatman
botanist butcher captain carpenter cellist chemist clerk cobbler conductor cook cousin curator
dancer dentist drummer engineer engraver farmer ferryman flautist florist forester gardener
geologist glazier grocer historian hunter innkeeper jeweller juggler lawyer librarian magician
mason mechanic merchant miller neighbour nephew novelist organist painter pedlar pianist pilgrim
pilot plumber poet porter postman potter printer ranger roofer sailor sculptor shepherd singer
stoker surgeon surveyor tailor teacher thatcher translator trapper traveller trumpeter uncle usher
vintner violinist waiter weaver welder widow
""")
PLACES = split("""
airfield arcade attic avenue bakery barracks bookshop brewery bridge canal canyon castle cathedral
cavern cellar chapel cliff courthouse courtyard crossroads dairy desert dune embassy riverside
fortress foundry gallery glacier greenhouse harbour infirmary island jungle kennel kitchen
laboratory lagoon library lighthouse market marsh meadow monastery museum nursery oasis observatory
orchard parliament pasture pavilion peninsula plantation plateau prairie quarry racecourse
reservoir riverbank sawmill school shipyard smithy square stable stadium station summit swamp
tannery tavern theatre tunnel seminary valley viaduct village vineyard volcano warehouse
waterfall wharf windmill workshop
""")
THINGS = split("""
accordion airship amethyst anchor antenna anvil apron armour atlas awning axle balcony balloon
bandage banister banjo banner barometer barrel barrow basalt basket bassoon battery bellows bench
bicycle blanket bobbin boiler bonnet boot bottle boulder bracelet brass brick bronze brooch broom
brush bucket buckle button cable calendar camera candle cannon canoe canvas carpet carriage
cassette catapult cello cement chain chandelier chessboard chimney chisel clarinet cleaver cobalt
colander comb comet compass copper corduroy crate crayon crown crutch crystal cupboard curtain
dagger diamond dice dictionary dinghy doll domino doorbell doormat drawer elevator emerald envelope
escalator flagpole flannel fountain funnel furnace gargoyle garnet gasket girder globe glove goblet
gramophone granite grater gravel gutter hammock helmet hinge hook horseshoe hosepipe sundial
inkwell jacket kayak kettle keyboard keyhole kite knocker ladder ladle lamp lantern lasso ledger
lever limestone linen lipstick locket loom magnet mandolin marble mast matchbox medal meteor
microphone microscope mirror mitten mortar nebula necklace needle newspaper nickel notebook opal
oven paddle padlock palette pamphlet parachute parasol parcel parchment pebble pencil pendulum
pennant perfume periscope pewter piano pillow piston planet plank plaster pliers plough pocket
postcard projector propeller pulley puppet purse quill quiver radiator radio rafter rake razor
ribbon rivet rocket rucksack rudder saddle sandal sandstone sapphire satellite satin saucepan
saucer scaffold scarf sceptre schooner screwdriver scythe seesaw sextant shield shingle shovel
shutter sickle sieve silver skillet skylight slate sledge soap spatula spindle spoke sponge spoon
sprinkler staircase stamp staple statue steel stocking stretcher submarine suitcase swing syringe
tambourine tankard tapestry teapot teddy telegraph telephone telescope thermometer thimble tinder
toaster topaz torch towel trampoline trawler trebuchet trestle tricycle tripod trombone trophy
trousers turbine turnstile turret twine typewriter umbrella valve velvet veranda wagon waistcoat
wallet wheel whisk whistle winch wrench yacht zipper
""")
ANIMALS = split("""
albatross alpaca anchovy anteater antelope armadillo baboon badger beaver beetle bison buffalo
butterfly buzzard camel centipede chameleon cheetah cobra cougar coyote crab cricket crocodile
cuckoo dingo dolphin donkey dragonfly duck eagle elephant falcon ferret finch flamingo flounder
frog gazelle gecko gerbil giraffe gorilla grasshopper gull halibut hamster hedgehog heron herring
hornet hyena iguana jackal jackdaw jellyfish kangaroo kestrel kingfisher koala lemur leopard lizard
llama lobster locust lynx macaw mackerel magpie mantis marten meerkat mongoose monkey moose moth
mule mussel newt octopus osprey oyster panther parrot partridge peacock pelican penguin pheasant
pigeon platypus porpoise puffin quail rabbit raven reindeer rhino robin salamander salmon sardine
scorpion seal shark shrimp sloth snail sparrow spider squid squirrel starfish starling stingray
stork sturgeon swan thrush tiger toad tortoise toucan trout turkey turtle urchin viper vulture
walrus wasp weasel whale wolf wombat woodpecker zebra
""")
PLANTS = split("""
almond apricot avocado bagel bamboo banana barley basil begonia birch biscuit bluebell broccoli
cabbage cactus caramel carrot cashew casserole cedar celery cheese cherry chestnut chickpea
chocolate chowder cinnamon clover cocoa coconut cranberry cucumber currant custard cypress daffodil
daisy dumpling fern garlic geranium ginger gooseberry grapefruit hawthorn hazel heather hickory
holly honey iris jasmine juniper lavender lemon lentil lettuce lichen lily lotus magnolia maize
mango maple marigold marmalade melon millet mint moss muffin mulberry mustard nettle noodle nougat
nutmeg olive omelette onion orange orchid oregano pancake papaya parsley parsnip peach peanut peony
pepper petunia pickle pineapple pistachio popcorn poplar poppy porridge pretzel primrose pudding
pumpkin quince radish raspberry rice rosemary saffron sandwich sausage sherbet snowdrop sorghum
spinach spruce strawberry sunflower syrup thistle thyme toffee tomato trifle tulip turnip vanilla
vinegar violet waffle walnut wheat willow yoghurt
""")
IDEAS = split("""
algebra anthem apology auction autumn avalanche banquet bargain blizzard bravery carnival century
charcoal chorus climate colour comedy concert courage crimson daydream decade diagonal drizzle
earthquake ebony echo election expedition fable festival fever flavour fortune fraction fragrance
friction geometry gossip gravity harmony harvest headache hexagon holiday horizon hunger hurricane
icicle indigo ivory jealousy journey kindness landslide laughter lecture legend lesson lightning
loyalty magenta melody memory mercy midnight momentum mortgage nightmare parade patience pension
promise proverb puddle quarrel raindrop ransom rebellion rehearsal rhythm riddle ripple rumour
salary scarlet shadow silence slumber smoke sneeze snowflake sonnet sorrow spiral steam summer
sunrise tariff texture theorem thunder tide tornado tragedy treaty triangle truce turquoise
twilight vapour verdict voltage voyage wedding whisper winter wisdom
""")
VERBS = split("""
abandon admire apologise appear argue arrive assemble attack believe blossom boast borrow bounce
carve chew chuckle climb collect collide compare complain confess convince crawl crumple cultivate
dangle dazzle decorate defend deliver deny depart descend devour digest discover dismantle dissolve
divide donate doubt drift drown embroider estimate evaporate examine explore extinguish fasten
ferment flicker float flourish forget forgive freeze furnish gallop garnish gather giggle glide
glisten grill hover hurry ignite imagine imitate inhabit inherit inspect invent investigate
irrigate kindle knead knit leap linger loosen measure melt mend multiply mumble mutter negotiate
nibble notice observe persuade plunge polish praise predict pretend protect prune recognise
repair rescue ridicule rinse roast scatter scream scrub shatter shiver shout simmer sketch
snore soar sparkle splash sprout squeeze subtract surrender suspect swerve thaw tighten tremble
trot tumble unfold vanish varnish wander weep whittle wither wobble wriggle yawn
""")
ADJECTIVES = split("""
amber ancient angry anxious arctic arid awkward bashful bitter bleak blind blunt bold brief bright
brisk brittle broad broken bumpy burly calm candid careful careless cautious charming cheap
cheerful chilly chubby civil clumsy coarse cold cordial costly cosy cranky crazy creamy crisp
crooked crowded cruel cunning curious curly damp daring dark dear decent deep delicate dense devout
dingy dizzy docile dreamy dreary drowsy dull dusty eager earnest earthy elegant empty entire exact
exotic faded faint fair faithful familiar famous fancy feeble fertile festive fierce fiery flat
fluffy foggy foolish formal fragile frail frank frantic fresh friendly frosty frozen frugal funny
furious fuzzy gaunt generous gentle giant giddy gifted glad gleaming glossy graceful gracious grand
grateful greedy grumpy gusty handsome handy happy hardy harsh hasty haughty heavy hectic helpful
hoarse hollow homely hopeful huge humble humid hungry idle immense impish jolly jovial
joyful keen lanky large lavish lazy lean lengthy lively lofty lonely loud lovely lucid lumpy lush
massive mellow merry messy mighty mild modern modest moist moody muddy muffled mute narrow nasty
neat nervous nimble noble noisy obscure opaque ordinary ornate patient peculiar pensive perky petty
placid playful pleasant plucky plump polite poor prickly private prompt proper proud puny quaint
queasy quick quiet radiant ragged rainy rapid rare ready regal remote restless rich rigid robust
rosy rotten round rowdy royal rude rugged rural rustic sacred salty savage scarce selfish
serene severe shabby shaggy shallow sharp shiny shrewd silent silky silly simple sincere skilful
sleek sleepy slender slim slippery slow smooth smug snowy sober soft solemn solid sombre sore sour
spare sparse spicy spiky splendid spotless stale stately steady steep sterile stern sticky stiff
stormy stout strange strict strong stubborn sturdy subtle sudden sullen sunny superb supple swift
tactful tame tangy tardy tasty tender tense thick thin thirsty thorny thrifty tidy timid tiny tired
tough tranquil tricky trusty ugly unusual upright urban urgent useless vacant vague vain valiant
vast vexed vibrant vigilant vivid wary wavy weak wealthy weary weird whimsical wicked wide wild
wilted wise wistful witty wobbly wooden woolly worthy yearly yellow young zealous zesty
""")
NOUNS = PEOPLE + PLACES + THINGS + ANIMALS + PLANTS + IDEAS
POOL = NOUNS + VERBS + ADJECTIVES
