/* The kernels for any machine. */
#define LEVEL 0
#define LEVEL_NAME "baseline"
#define TABLE KERNELS_BASELINE
#include "kernels.h"
