// What every native operator shares: bfloat16, a vectorisable exp, and the split of rows over threads.
// Plain C++ without torch headers, so that it compiles in seconds; tensors arrive as pointers to contiguous memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __SSE2__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num() { return 0; }
static inline int omp_get_num_threads() { return 1; }
#endif

struct bf16 {
    uint16_t bits;
};

static inline float up(float x) { return x; }
static inline float up(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

template <class T>
static inline T down(float x);
template <>
inline float down<float>(float x) { return x; }
template <>
inline bf16 down<bf16>(float x) {
    uint32_t u = std::bit_cast<uint32_t>(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;  // to nearest, ties to even
    // rounding would carry a NaN into infinity or zero
    return bf16{static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
}

// relative error below 2e-7 inside [-87, 88]; saturates outside; NaN stays NaN
static inline float fast_exp(float x) {
    float y = x < -87.0f ? -87.0f : x;
    y = y > 88.0f ? 88.0f : y;
    float n = (y * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    float r = y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

static inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

// log(1 + e^x) by the series of the inverse hyperbolic tangent; relative error below 1e-6
static inline float fast_softplus(float x) {
    const float u = fast_exp(x < 0 ? x : -x), s = u / (2.0f + u), t = s * s;
    float p = 1.0f / 13.0f;
    p = p * t + 1.0f / 11.0f;
    p = p * t + 1.0f / 9.0f;
    p = p * t + 1.0f / 7.0f;
    p = p * t + 1.0f / 5.0f;
    p = p * t + 1.0f / 3.0f;
    p = p * t + 1.0f;
    return (x > 0 ? x : 0.0f) + 2.0f * s * p;
}

// relative error below 4e-7. The difference alone loses all digits of a small x, where SiTU works most of the time; below 0.6
// it is x + x^3 p(x^2), p fitted for the smallest largest relative error (3e-9)
static inline float fast_tanh(float x) {
    const float s = x * x, far = 1.0f - 2.0f / (fast_exp(2.0f * x) + 1.0f);
    float p = -5.895158060e-3f;
    p = p * s + 2.079597165e-2f;
    p = p * s - 5.378383027e-2f;
    p = p * s + 1.333192413e-1f;
    p = p * s - 3.333329800e-1f;
    return s < 0.36f ? x + x * s * p : far;
}

// While it lives, this thread takes numbers below 1e-38 for zero. Strong decays make many of them, and each costs a hundred
// times an ordinary one.
struct TinyIsZero {
#ifdef __SSE2__
    unsigned before = _mm_getcsr();
    TinyIsZero() { _mm_setcsr(before | 0x8040u); }
    ~TinyIsZero() { _mm_setcsr(before); }
#endif
};

// first row of thread `t` of `n`
static inline int64_t row_begin(int64_t rows, int t, int n) { return rows * t / n; }

#define EXPORT extern "C" __attribute__((visibility("default")))
