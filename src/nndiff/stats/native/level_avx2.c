/* The kernels for machines with AVX2, FMA and F16C. */
#if defined(__x86_64__) && defined(__GNUC__)
#define LEVEL 2
#define LEVEL_NAME "avx2"
#define TARGET "avx2,fma,f16c,popcnt"
#define TABLE KERNELS_AVX2
#include "kernels.h"
#else
typedef int nothing_here; /* ISO C wants a declaration */
#endif
