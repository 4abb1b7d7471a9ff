/* Tables of the element types. */
#include "native.h"

const double RTOL[RTOLS] = {0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1};
const unsigned char TYPE_SIZE[TYPES] = {8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1, 1, 1, 1, 1};
float F8_TABLE[5][256]; /* filled from dtypes.py when the module is loaded */

const uint64_t CONTENT_KEYS[3] = {0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7};
const uint64_t CONTENT_FACTORS[2] = {0xBF58476D1CE4E5B9, 0x94D049BB133111EB};
