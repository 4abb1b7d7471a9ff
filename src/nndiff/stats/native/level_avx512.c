/* The kernels for machines with AVX-512 (F, DQ, BW, VL). */
#if defined(__x86_64__) && defined(__GNUC__)
#define LEVEL 512
#define LEVEL_NAME "avx512"
#define TARGET "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c,popcnt"
#define TABLE KERNELS_AVX512
#include "kernels.h"
#else
typedef int nothing_here; /* ISO C wants a declaration */
#endif
