/* Tables of the element types. */
#include "native.h"

const double RTOL[RTOLS] = {0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1};
const unsigned char TYPE_SIZE[TYPES] = {8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1, 1, 1, 1, 1};
float F8_TABLE[5][256]; /* filled from dtypes.py when the module is loaded */
