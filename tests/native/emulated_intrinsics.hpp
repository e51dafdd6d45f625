// AVX-512 and VNNI on a machine with AVX2: SIMDe's portable forms, and from halves what its release 0.7.4 lacks.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#undef _mm512_madd_epi16  // 0.7.4 gives this alias to the masked form
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#define _mm256_dpbusd_avx_epi32(sum, a, b) simde_mm256_dpbusd_epi32(sum, a, b)

namespace {

inline __m256i half_of(__m512i x, int which) {
    return which ? simde_mm512_extracti64x4_epi64(x, 1) : simde_mm512_castsi512_si256(x);
}
inline __m512i joined(__m256i low, __m256i high) { return simde_mm512_inserti64x4(simde_mm512_castsi256_si512(low), high, 1); }
inline __m512 joined(__m256 low, __m256 high) {
    return simde_mm512_castsi512_ps(joined(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}
inline __m512i emulated_cvtps(__m512 x) {
    const __m512i bits = simde_mm512_castps_si512(x);
    return joined(_mm256_cvtps_epi32(_mm256_castsi256_ps(half_of(bits, 0))), _mm256_cvtps_epi32(_mm256_castsi256_ps(half_of(bits, 1))));
}
inline __m512 emulated_cvtepi32(__m512i x) { return joined(_mm256_cvtepi32_ps(half_of(x, 0)), _mm256_cvtepi32_ps(half_of(x, 1))); }
inline __m512i emulated_cvtepi8(__m128i x) { return joined(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))); }
inline __m512i emulated_cvtepu8(__m128i x) { return joined(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))); }
inline __m512i emulated_cvtepu16(__m256i x) {
    return joined(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}
inline __m512 emulated_cvtph(__m256i x) {
    return joined(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
template <class Lane, class Op> Lane emulated_reduce(__m512i x, Op op) {
    Lane lanes[64 / sizeof(Lane)];
    __builtin_memcpy(lanes, &x, 64);
    for (unsigned i = 1; i < 64 / sizeof(Lane); i++) lanes[0] = op(lanes[0], lanes[i]);
    return lanes[0];
}

}  // namespace

#define _mm512_cvtps_epi32 emulated_cvtps
#define _mm512_cvtepi32_ps emulated_cvtepi32
#define _mm512_cvtepi8_epi32 emulated_cvtepi8
#define _mm512_cvtepu8_epi32 emulated_cvtepu8
#define _mm512_cvtepu16_epi32 emulated_cvtepu16
#define _mm512_cvtph_ps emulated_cvtph
#define _mm512_reduce_add_epi32(x) emulated_reduce<int>(x, [](int a, int b) { return a + b; })
#define _mm512_reduce_max_epi32(x) emulated_reduce<int>(x, [](int a, int b) { return a > b ? a : b; })
#define _mm512_reduce_add_epi64(x) emulated_reduce<long long>(x, [](long long a, long long b) { return a + b; })
