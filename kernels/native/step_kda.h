// KDA of one new token. The heads are independent: convolution, gates, recurrence and output norm of a head are one
// thread's. Source: Kimi Linear report (arXiv:2510.26692), Kimi K3 report (arXiv:2607.24653, eq. 1-5).
#pragma once
#include "step.h"

static inline int64_t kda_columns(const Layer& at) {  // q | k | v | beta | decay | gate
    return 3 * at.heads * at.width + at.heads + at.width + (at.gate_rank ? at.gate_rank : at.heads * at.width);
}

template <class T>
static void kda_project(const Layer& at, Board& board, const float* h, const Share& share) {
    const int64_t C = at.heads * at.width, P = kda_columns(at), D = board.D;
    const struct {
        const void* w;
        int64_t rows;
    } parts[] = {{at.q, C}, {at.k, C}, {at.v, C}, {at.beta, at.heads}, {at.decay_a, at.width},
                 {at.gate_rank ? at.gate_a : at.gate_b, at.gate_rank ? at.gate_rank : C}};
    int64_t offset = 0, begin = share.begin(P), end = share.end(P);
    for (const auto& part : parts) {  // this thread's rows of the matrices laid end to end
        const int64_t a = std::max(begin, offset), b = std::min(end, offset + part.rows);
        if (a < b)
            rows_of((const T*)part.w, D, h, D, a - offset, b - offset, board.N, board.joint.data() + offset, P);
        offset += part.rows;
    }
}

// one channel: window oldest first, moved on
template <class T>
static inline float convolve(T* window, const float* filter, int64_t stride, int taps, float x) {
    float sum = filter[(taps - 1) * stride] * x;
    for (int i = 0; i < taps - 1; i++) sum += filter[i * stride] * up(window[i]);
    for (int i = 0; i + 2 < taps; i++) window[i] = window[i + 1];
    if (taps > 1) window[taps - 2] = down<T>(x);
    return sum;
}

// state [K, K] becomes diag(a) state + k r^T with r = beta (v - k^T diag(a) state); y = q^T of it
static inline void recur(float* state, int64_t K, const float* q, const float* k, const float* v, const float* a,
                         float beta, float* rest, float* y) {
    std::fill(rest, rest + K, 0.0f);
    std::fill(y, y + K, 0.0f);
    float along = 0;
    for (int64_t c = 0; c < K; c++) {
        const float decay = a[c], key = k[c], query = q[c];
        const float* row = state + c * K;
        along += query * key;
#pragma omp simd
        for (int64_t j = 0; j < K; j++) {
            const float s = row[j] * decay;
            rest[j] += key * s;
            y[j] += query * s;
        }
    }
#pragma omp simd
    for (int64_t j = 0; j < K; j++) {
        rest[j] = beta * (v[j] - rest[j]);
        y[j] += along * rest[j];
    }
    for (int64_t c = 0; c < K; c++) {
        const float decay = a[c], key = k[c];
        float* row = state + c * K;
#pragma omp simd
        for (int64_t j = 0; j < K; j++) row[j] = row[j] * decay + key * rest[j];
    }
}

template <class T>
static void kda_heads(const Layer& at, Board& board, T* window, float* state, float l2_eps, const Share& share) {
    const int64_t H = at.heads, K = at.width, C = H * K, P = kda_columns(at), taps = at.taps, edge = taps - 1;
    std::vector<float> scratch(8 * K);
    float *q = scratch.data(), *k = q + K, *v = k + K, *decay = v + K, *gate = decay + K, *rest = gate + K, *y = rest + K;
    for (int64_t task = share.begin(board.N * H); task < share.end(board.N * H); task++) {
        const int64_t n = task / H, h = task % H;
        const float *joint = board.joint.data() + n * P, *low = joint + 3 * C + H;
        for (int part = 0; part < 3; part++) {
            float* out = q + part * K;
            const int64_t first = part * C + h * K;
            T* w = window + (n * 3 * C + first) * edge;
            if (taps == 4)
                for (int64_t c = 0; c < K; c++) out[c] = convolve(w + c * 3, at.filter + first + c, 3 * C, 4, joint[first + c]);
            else
                for (int64_t c = 0; c < K; c++)
                    out[c] = convolve(w + c * edge, at.filter + first + c, 3 * C, taps, joint[first + c]);
        }
        for (int64_t c = 0; c < 3 * K; c++) q[c] *= fast_sigmoid(q[c]);
        float qq = 0, kk = 0;
#pragma omp simd reduction(+ : qq, kk)
        for (int64_t c = 0; c < K; c++) {
            qq += q[c] * q[c];
            kk += k[c] * k[c];
        }
        const float on_q = 1.0f / std::sqrt((qq + l2_eps) * K), on_k = 1.0f / std::sqrt(kk + l2_eps);
        rows_of((const T*)at.decay_b + h * K * K, K, low, 0, 0, K, 1, decay, 0);
        const float *dt = at.dt + h * K, rate = at.rate[h], bound = at.bound;
#pragma omp simd
        for (int64_t c = 0; c < K; c++) {
            q[c] *= on_q;
            k[c] *= on_k;
        }
        if (bound != 0)
            for (int64_t c = 0; c < K; c++) decay[c] = fast_exp(bound * fast_sigmoid(rate * (decay[c] + dt[c])));
        else
            for (int64_t c = 0; c < K; c++) decay[c] = fast_exp(-rate * fast_softplus(decay[c] + dt[c]));
        const float* opened = low + K + h * K;
        if (at.gate_rank) {
            rows_of((const T*)at.gate_b + h * K * at.gate_rank, at.gate_rank, low + K, 0, 0, K, 1, gate, 0);
            opened = gate;
        }
        recur(state + (n * H + h) * K * K, K, q, k, v, decay, fast_sigmoid(joint[3 * C + h]), rest, y);
        float* out = board.mixed.data() + n * C + h * K;
        norm_row(y, at.head_norm, K, at.head_eps, out);
#pragma omp simd
        for (int64_t c = 0; c < K; c++) out[c] *= fast_sigmoid(opened[c]);
    }
}
