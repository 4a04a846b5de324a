// What a chunk of KDA computes before it meets a state, and the solve between reading and writing it.
// Source of the chunk form: Kimi Linear report (arXiv:2510.26692). Per stream and head, with G the running sum of g inside a
// chunk, E = e^G, k+ = k E, q+ = q E, k- = k / E, k= = k e^{Gn - G}:
//   R = v - k+ S;   U = R - A Y, Y = beta U,  A_ij = k+_i . k-_j  (i > j)
//   o = scale (q+ S + P Y),  P_ij = q+_i . k-_j  (i >= j);   S' = diag(e^{Gn}) S + k=^T Y
// Legend: K key width, V value width, C rows of a chunk, n its length.
#pragma once
#include <memory>
#include "kda_products.h"

constexpr int SEGMENT = 256;  // rows; as in kernels/native/kda.py
constexpr float LOWEST = -80.0f;  // e^80 and what it multiplies fit float32
// Decayed rows are held 2^58 times as large, inverse ones and states as much smaller: e^-80 of a row would be taken for zero
constexpr int SHIFT = 58;
constexpr float RAISE = 0x1p58f, LOWER = 0x1p-58f;
constexpr float GONE = -20.0f;  // 2e-9 of a state is below the rounding of the rest; stronger decays are taken for this one

// the greater of a number and a bound, the number where it is none
static inline vec at_least(vec bound, vec x) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)bound, (__m512)x);
#else
    return x < bound ? bound : x;
#endif
}

// 2^SHIFT e^x and 2^-SHIFT e^-x for x from LOWEST to 0, relative error below 3e-7. With x = n log 2 + r both are the even part
// of e^r plus or minus its odd one.
static inline void exponentials(vec x, vec& up, vec& down) {
    const vec n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    vec r = less_product(n, splat(0.693359375f), x);
    r = add_product(n, splat(2.12194440e-4f), r);
    const vec s = r * r;
    vec even = add_product(s, splat(1.0f / 720.0f), splat(1.0f / 24.0f));
    even = add_product(even, s, splat(0.5f));
    even = add_product(even, s, splat(1.0f));
    vec odd = add_product(s, splat(1.0f / 5040.0f), splat(1.0f / 120.0f));
    odd = add_product(odd, s, splat(1.0f / 6.0f));
    odd = add_product(odd, s, splat(1.0f));
    odd = odd * r;
    typedef int32_t whole __attribute__((vector_size(W * 4)));
    const whole power = __builtin_convertvector(n, whole);
    up = (even + odd) * std::bit_cast<vec>((power + (127 + SHIFT)) << 23);
    down = (even - odd) * std::bit_cast<vec>((127 - SHIFT - power) << 23);
}

// memory on a cache line, filled with zeros once
struct Room {
    std::vector<float> memory;
    float* at = nullptr;
    float* hold(int64_t wanted) {
        if ((int64_t)memory.size() < wanted + 16) {
            memory.assign(wanted + 16, 0.0f);
            at = memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64 / sizeof(float);
        }
        return at;
    }
};

// One head of a stream: where its rows lie. The row after the one at p lies at p + H * width
template <class T>
struct Head {
    const T *q, *k, *v;
    const float *g, *beta;
    int64_t H;
    int K, V;

    // this head's rows from row t of head h on
    Head from(int64_t t, int64_t h) const {
        const int64_t at = t * H + h;
        return {q + at * K, k + at * K, v + at * V, g + at * K, beta + at, H, K, V};
    }
};

enum Reader { KEYS, QUERIES, GRADIENTS };

struct Chunk {
    const int K;
    int n = 0;
    Room memory;
    // k+ and q+ [C, K] each, which meet the same matrices, lie one behind the other; so do A and P [C, C], which are what both
    // make of k- and hold zeros where the mask is. rise and fall are 2^SHIFT E and its inverse, last is E's last row
    float *kp, *qp, *km, *ke, *rise, *fall, *turned, *A, *P, *beta, *last, *sum;

    explicit Chunk(int width) : K(width) {
        float* at = memory.hold(8 * C * K + 2 * K + 2 * C * C + C);
        for (float** p : {&kp, &qp, &km, &ke, &rise, &fall, &turned}) *p = at, at += C * K;
        for (float** p : {&A, &P}) *p = at, at += C * C;
        for (float** p : {&last, &sum}) *p = at, at += K;
        beta = at;
    }

    // Rows at the beginning of `left` ones, at most C and at least four if there are, over which no channel decays below
    // LOWEST: where it ends depends on no later row, so no later row changes a bit of an earlier result
    int fit(const float* g, int64_t stride, int64_t left) const {
        const int most = (int)std::min<int64_t>(C, left);
        auto low = [&] {
            vec found = vec{};
            for (int c = 0; c < K; c += W) found = found < load(sum + c) ? found : load(sum + c);
            float lowest = 0;
            for (int l = 0; l < W; l++) lowest = std::min(lowest, found[l]);
            return lowest;
        };
        // decays only add up, so the last sum decides nearly always
        for (const bool slowly : {false, true}) {
            std::fill(sum, sum + K, 0.0f);
            for (int i = 0; i < most; i++) {
                for (int c = 0; c < K; c += W)
                    store(sum + c, load(sum + c) + at_least(splat(GONE), load(g + i * stride + c)));
                if (slowly && low() < LOWEST) return i;
            }
            if (low() >= LOWEST) break;
        }
        return most;
    }

    // Rows [0, count), which `fit` has found to fit, for a reader of keys alone, for one of queries too, or for gradients,
    // which also need km, rise and fall.
    template <Reader FOR, class T>
    void read(const Head<T>& at, int count) {
        n = count;
        if (n == C) {
            decay<FOR, C>(at);
        } else {
            decay<FOR, 0>(at);
            for (float* rows : {kp, ke, km}) std::fill(rows + n * K, rows + C * K, 0.0f);
            if (FOR != KEYS) std::fill(qp + n * K, qp + C * K, 0.0f);
            turn_rows(km, K, K, turned, C);
        }
        constexpr int NV = C / W;
        product<NV, 0, ZERO>(n, K, kp, K, 1, turned, C, A, C);
        below<0>(A);
        if (FOR == KEYS) return;
        product<NV, 0, ZERO>(n, K, qp, K, 1, turned, C, P, C);
        below<1>(P);
    }

    // all but `turned` where there are fewer rows than C
    template <Reader FOR, int ROWS, class T>
    __attribute__((noinline)) void decay(const Head<T>& at) {
        const int64_t stride = at.H * K;
        for (int i = 0; i < n; i++) beta[i] = at.beta[i * at.H];
        for (int c = 0; c < K; c += W) {
            vec G = vec{}, high = vec{}, low = vec{}, inverse[C];
            each<ROWS>(0, n, [&](int i) {
                G += at_least(splat(GONE), load(at.g + i * stride + c));
                exponentials(G, high, low);
                const vec k = load(at.k + i * stride + c);
                inverse[i] = k * low;
                store(kp + i * K + c, k * high);
                if (FOR != KEYS) store(qp + i * K + c, load(at.q + i * stride + c) * high);
                if (FOR == GRADIENTS) store(rise + i * K + c, high), store(fall + i * K + c, low);
            });
            const vec end = high * LOWER;  // states are held smaller, and so is what is added to them
            store(last + c, end);
            each<ROWS>(0, n, [&](int i) {
                store(ke + i * K + c, inverse[i] * end);
                if (FOR == GRADIENTS || !ROWS) store(km + i * K + c, inverse[i]);
            });
            if (ROWS == C)
                for (int i = 0; i < C; i += W) {
                    turn(inverse + i);
                    for (int j = 0; j < W; j++) store(turned + (c + j) * C + i, inverse[i + j]);
                }
        }
    }

    // zeros for entries of [C, C] with j >= i + PAST, and for rows from n on
    template <int PAST>
    void below(float* tile) const {
        typedef int32_t lanes __attribute__((vector_size(W * 4)));
        lanes lane;
        for (int l = 0; l < W; l++) lane[l] = l;
        for (int i = 0; i < C; i++)
            for (int j = 0; j < C; j += W) {
                const int limit = i < n ? i + PAST - j : 0;
                store(tile + i * C + j, lane < limit ? load(tile + i * C + j) : vec{});
            }
    }
};

// U = v - k+ S - A Y over k+ S [n, NV * W], and Y
template <int NV, int ROWS, class T>
static inline void solve_rows(int n, const float* A, const float* beta, const T* v, int64_t stride, float* U, float* Y) {
    constexpr int ld = NV * W;
    for (int j = 0; j < NV; j++) {
        vec u[C];
        each<ROWS>(0, n, [&](int i) { u[i] = load(v + i * stride + j * W) - load(U + i * ld + j * W); });
        each<ROWS>(0, n, [&](int i) {
            const vec y = u[i] * splat(beta[i]);
            store(U + i * ld + j * W, u[i]);
            store(Y + i * ld + j * W, y);
            each<ROWS>(i + 1, n, [&](int b) { u[b] = less_product(splat(A[b * C + i]), y, u[b]); });
        });
    }
}

template <int NV, class T>
static inline void solve(const Chunk& chunk, const T* v, int64_t stride, float* U, float* Y) {
    if (chunk.n == C)
        solve_rows<NV, C>(C, chunk.A, chunk.beta, v, stride, U, Y);
    else
        solve_rows<NV, 0>(chunk.n, chunk.A, chunk.beta, v, stride, U, Y);
}

// Streams and heads in the order in which threads take them, long ones first
static std::vector<int> longest_first(const int* cu, int streams, int H) {
    std::vector<int> tasks(streams * H);
    for (int i = 0; i < streams * H; i++) tasks[i] = i;
    std::stable_sort(tasks.begin(), tasks.end(), [&](int a, int b) {
        return cu[a / H + 1] - cu[a / H] > cu[b / H + 1] - cu[b / H];
    });
    return tasks;
}

// How many states of each stream are kept before those of stream n: states at the first chunk at or behind every SEGMENT-th row
// of a stream but its first, which the backward makes the others from. No more than one in SEGMENT rows of all.
static std::vector<int64_t> kept_before(const int* cu, int streams) {
    std::vector<int64_t> before(streams + 1, 0);
    for (int n = 0; n < streams; n++) before[n + 1] = before[n] + std::max(0, cu[n + 1] - cu[n] - 1) / SEGMENT;
    return before;
}
