// One new token for each of a few streams: what its three sublayers have in common.
// Activations are float32 from the first layer to the last; weights and caches are T. Inside one parallel region every
// thread computes what is short (norms, the choice of experts) for itself and a share of the rows of every matrix; a
// barrier stands where a matrix reads what other threads wrote.
// Legend: N streams, D hidden width, C = heads * width channels, E experts, I inner width, L latent width, S slots.
#pragma once
#include "vector.h"

// Mirrored field by field in step.py; every field has eight bytes. Matrices [out, in] are T, all else is float32.
struct Layer {
    const float *mixer_norm, *mixer_query, *ffn_norm, *ffn_query;  // queries: query * gain of the residual mix, or null
    int64_t full_attention, snapshot;                               // snapshot: a block of residuals ends before it
    const void *q, *k, *v, *beta, *decay_a, *decay_b, *gate_a, *gate_b, *out;
    const float *filter, *rate, *dt, *head_norm;  // filter [taps, 3C]
    double bound, head_eps;                        // bound: of the log decay; 0 for the softplus gate
    int64_t heads, width, taps, gate_rank;         // gate_rank 0: gate_b reads the hidden state
    const void *q_b, *kv_a, *kv_b, *gate;          // full attention: q_b null, direct queries; gate null, no gate
    const float *q_norm, *kv_norm;
    double latent_eps, scale;
    int64_t q_rank, rank, nope, shared, value;
    const void *router, *w13, *w2, *down, *up;     // router null: a dense layer
    const float *bias, *latent_norm;
    double scaling, inner_eps;
    int64_t experts, picks, inner, latent;         // latent 0: experts read the hidden state
    const void *dense_gate, *dense_up, *dense_down;  // the dense GLU or the shared experts
    int64_t dense, situ;
    double curve, linear;                          // of SiTU-GLU
};

struct Share {  // of thread `mine` among `all`
    int mine, all;
    int64_t begin(int64_t n) const { return n * mine / all; }
    int64_t end(int64_t n) const { return n * (mine + 1) / all; }
};

static inline void meet(const Share& share) {
    if (share.all > 1) {
#pragma omp barrier
    }
}

// y[c] = x[c] * norm[c] / rms(x)
static inline void norm_row(const float* x, const float* norm, int64_t D, float eps, float* y) {
    float square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t c = 0; c < D; c++) square += x[c] * x[c];
    const float scale = 1.0f / std::sqrt(square / D + eps);
#pragma omp simd
    for (int64_t c = 0; c < D; c++) y[c] = x[c] * scale * norm[c];
}

// act(gate) * up over [begin, end): SwiGLU, or SiTU-GLU
static inline void glu(const Layer& at, const float* gate, const float* raise, int64_t begin, int64_t end, float factor,
                       float* y) {
    if (!at.situ) {
#pragma omp simd
        for (int64_t c = begin; c < end; c++) y[c] = gate[c] * fast_sigmoid(gate[c]) * raise[c] * factor;
        return;
    }
    const float curve = at.curve, linear = at.linear, a = 1.0f / curve, b = linear > 0 ? 1.0f / linear : 0.0f;
#pragma omp simd
    for (int64_t c = begin; c < end; c++) {
        const float wide = linear > 0 ? linear * fast_tanh(raise[c] * b) : raise[c];
        y[c] = curve * fast_tanh(gate[c] * a) * fast_sigmoid(gate[c]) * wide * factor;
    }
}

// What all threads see. Sizes are the largest over the layers.
struct Board {
    int N;
    int64_t D;
    std::vector<float> joint, mixed, update, query, inner, latent, score;
};
