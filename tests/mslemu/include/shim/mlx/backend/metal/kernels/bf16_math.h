// msl.h has the mathematics of bfloat.
#pragma once
