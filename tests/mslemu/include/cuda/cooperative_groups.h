// cuda.h has what is needed of it.
#pragma once
