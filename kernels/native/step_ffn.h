// The feed-forward of one new token: the dense GLU, or the picked experts beside the shared ones. Only the rows of picked
// experts are read, where they lie. Source: Kimi K3 report (arXiv:2607.24653), section 2.3.
#pragma once
#include "step.h"

template <class T>
static inline void glu_rows(const Layer& at, const T* gate, const T* raise, int64_t cols, const float* x, int64_t stride,
                            int64_t begin, int64_t end, int N, float* scratch, float* y, int64_t ldy) {
    // scratch [2, N, ldy]; this thread's part of it
    float *a = scratch, *b = scratch + N * ldy;
    rows_of(gate, cols, x, stride, begin, end, N, a, ldy);
    rows_of(raise, cols, x, stride, begin, end, N, b, ldy);
    for (int n = 0; n < N; n++) glu(at, a + n * ldy, b + n * ldy, begin, end, 1.0f, y + n * ldy);
}

template <class T>
struct Ffn {
    const Layer& at;
    Board& board;
    const Share& share;
    std::vector<float> scratch, normed, weight, biased;  // of this thread
    std::vector<int> picked;
    std::vector<Term<T>> terms;

    Ffn(const Layer& at_, Board& board_, const Share& share_) : at(at_), board(board_), share(share_) {}

    int64_t width() const { return at.latent ? at.latent : board.D; }

    // the k best of score + bias, equal ones to the lower index; weights from the scores alone
    void choose(int n) {
        const float* score = board.score.data() + n * at.experts;
        for (int64_t e = 0; e < at.experts; e++) biased[e] = score[e] + at.bias[e];
        float sum = 0;
        for (int64_t j = 0; j < at.picks; j++) {
            int best = 0;
            for (int64_t e = 1; e < at.experts; e++)
                if (biased[e] > biased[best]) best = e;
            biased[best] = -INFINITY;
            picked[n * at.picks + j] = best;
            sum += score[best];
        }
        for (int64_t j = 0; j < at.picks; j++)
            weight[n * at.picks + j] = score[picked[n * at.picks + j]] / (sum + 1e-20f) * (float)at.scaling;
    }

    // h [N, D] -> board.update [N, D], complete after the barrier that the caller places
    void run(const float* h) {
        const int N = board.N;
        const int64_t D = board.D, dense = at.dense;
        float* side = board.inner.data();  // [N, dense] of the dense GLU or the shared experts, then [N, k, I]
        scratch.resize(2 * N * std::max(dense, at.inner));
        if (dense)
            glu_rows(at, (const T*)at.dense_gate, (const T*)at.dense_up, D, h, D, share.begin(dense), share.end(dense), N,
                     scratch.data(), side, dense);
        if (!at.router) {
            meet(share);
            rows_of((const T*)at.dense_down, dense, side, dense, share.begin(D), share.end(D), N, board.update.data(), D);
            return;
        }
        const int64_t E = at.experts, k = at.picks, I = at.inner, L = width();
        rows_of((const T*)at.router, D, h, D, share.begin(E), share.end(E), N, board.score.data(), E);
        for (int n = 0; n < N; n++)
            for (int64_t e = share.begin(E); e < share.end(E); e++) {
                float& s = board.score[n * E + e];
                s = 1.0f / (1.0f + std::exp(-s));
            }
        if (at.latent) rows_of((const T*)at.down, D, h, D, share.begin(L), share.end(L), N, board.latent.data(), L);
        meet(share);
        weight.resize(N * k);
        picked.resize(N * k);
        biased.resize(E);
        for (int n = 0; n < N; n++) choose(n);
        const float* z = at.latent ? board.latent.data() : h;
        float* inner = side + N * dense;
        // rows of all picked experts laid end to end, scaled already by the weight of their expert
        for (int64_t row = share.begin(N * k * I), end = share.end(N * k * I); row < end;) {
            const int64_t choice = row / I, a = row - choice * I, b = std::min(I, end - choice * I);
            const T* w = (const T*)at.w13 + (int64_t)picked[choice] * 2 * I * L;
            rows_of(w, L, z + choice / k * L, L, a, b, 1, scratch.data(), I);
            rows_of(w + I * L, L, z + choice / k * L, L, a, b, 1, scratch.data() + I, I);
            glu(at, scratch.data(), scratch.data() + I, a, b, weight[choice], inner + choice * I);
            row = choice * I + b;
        }
        meet(share);
        float* mixed = at.latent ? board.query.data() : board.update.data();
        for (int n = 0; n < N; n++) {
            terms.clear();
            for (int64_t j = n * k; j < (n + 1) * k; j++)
                terms.push_back({(const T*)at.w2 + (int64_t)picked[j] * L * I, inner + j * I, I, 0});
            if (dense && !at.latent) terms.push_back({(const T*)at.dense_down, side + n * dense, dense, 0});
            rows_of(terms.data(), (int)terms.size(), share.begin(L), share.end(L), 1, mixed + n * L, 0);
        }
        if (!at.latent) return;
        meet(share);
        if (at.latent_norm) {
            normed.resize(N * L);
            for (int n = 0; n < N; n++) norm_row(mixed + n * L, at.latent_norm, L, at.inner_eps, normed.data() + n * L);
        }
        terms.assign({{(const T*)at.up, at.latent_norm ? normed.data() : mixed, L, L}});
        if (dense) terms.push_back({(const T*)at.dense_down, side, dense, dense});
        rows_of(terms.data(), (int)terms.size(), share.begin(D), share.end(D), N, board.update.data(), D);
    }
};
