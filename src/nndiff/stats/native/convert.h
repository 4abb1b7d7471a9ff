/* Elements of any type as floats or doubles. Plain loops: the compiler makes vectors of them. */

static inline float half_to_float(uint16_t half)
{
    /* shifted into place, the exponent is 112 too small; the product also gives subnormals their value */
    uint32_t bits = (uint32_t)(half & 0x7FFF) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof bits);
    bits |= (half & 0x7C00) == 0x7C00 ? 0x7F800000u : 0; /* infinite or not a number */
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Elements may lie anywhere in a file, so they are copied out, which costs nothing. */
#define EACH(element, expression)                                                                                      \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        element x;                                                                                                     \
        memcpy(&x, (const char *)source + i * sizeof x, sizeof x);                                                     \
        out[i] = (expression);                                                                                         \
    }                                                                                                                  \
    return

static void halves_to_floats(const void *source, size_t n, float *out)
{
#if LEVEL /* every machine with AVX2 has an instruction for it */
    for (; n >= 8; n -= 8, source = (const uint16_t *)source + 8, out += 8) {
        _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(source)));
        __builtin_prefetch((const char *)source + 2048);
    }
#endif
    EACH(uint16_t, half_to_float(x));
}

static void to_f32(Type type, const void *source, size_t n, float *out)
{
    switch (type) {
    case TYPE_F32: memcpy(out, source, n * sizeof *out); return;
    case TYPE_F16: halves_to_floats(source, n, out); return;
    case TYPE_BF16: EACH(uint16_t, bf16_to_float(x));
    case TYPE_I16: EACH(int16_t, (float)x);
    case TYPE_I8: EACH(int8_t, (float)x);
    case TYPE_U16: EACH(uint16_t, (float)x);
    case TYPE_U8: EACH(uint8_t, (float)x);
    default: break;
    }
    const float *table = F8_TABLE[type - TYPE_F8];
    EACH(uint8_t, table[x]);
}

static void to_f64(Type type, const void *source, size_t n, double *out)
{
    switch (type) {
    case TYPE_F64: memcpy(out, source, n * sizeof *out); return;
    case TYPE_F32: EACH(float, (double)x);
    case TYPE_F16: EACH(uint16_t, (double)half_to_float(x));
    case TYPE_BF16: EACH(uint16_t, (double)bf16_to_float(x));
    case TYPE_I64: EACH(int64_t, (double)x);
    case TYPE_I32: EACH(int32_t, (double)x);
    case TYPE_I16: EACH(int16_t, (double)x);
    case TYPE_I8: EACH(int8_t, (double)x);
    case TYPE_U64: EACH(uint64_t, (double)x);
    case TYPE_U32: EACH(uint32_t, (double)x);
    case TYPE_U16: EACH(uint16_t, (double)x);
    case TYPE_U8: EACH(uint8_t, (double)x);
    default: break;
    }
    const float *table = F8_TABLE[type - TYPE_F8];
    EACH(uint8_t, (double)table[x]);
}
#undef EACH
