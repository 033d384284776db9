#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

// window[b, p + 1] is drawn from softmax(logits[b] / temperature), p = positions[b], and p becomes
// p + 1, at most P - 1: window (B, P + 1), positions (B), logits (B, Vp), coins (B, P)
void decode_sample_cpu(
    int* window, int* positions, const double* logits, const double* coins, int B, int P, int V,
    int Vp, float temperature, int top_k) {
    for (int b = 0; b < B; b++) {
        const double* x = logits + (size_t)b * Vp;
        const double coin = coins[(size_t)b * P + positions[b]];
        int& next = window[b * ((size_t)P + 1) + positions[b] + 1];
        positions[b] = std::min(positions[b] + 1, P - 1);
        next = -1;  // there is none where a logit is not finite
        if (!std::all_of(x, x + V, [](double logit) { return std::isfinite(logit); })) continue;
        std::vector<int> order(V);  // token ids from the likeliest on
        for (int i = 0; i < V; i++) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [x](int i, int j) { return x[i] > x[j]; });
        int keep = temperature == 0 ? 1 : 0 < top_k && top_k < V ? top_k : V;
        std::vector<double> weight(V);
        double total = 0, sum = 0;
        for (int i = 0; i < keep; i++) {
            double score = x[order[i]] - x[order[0]];
            weight[order[i]] = temperature == 0 ? 1 : std::exp(score / temperature);
        }
        for (int i = 0; i < V; i++) total += weight[i];
        for (next = 0; next < V - 1; next++) {
            sum += weight[next];
            if (sum > coin * total) break;
        }
    }
}

// Token ids within the vocabulary, positions within the window, numbers from 0 to below 1.
void decode_sample_inputs(
    int* window, int* positions, double* coins, int B, int P, int V, std::mt19937& random) {
    for (int i = 0; i < B * (P + 1); i++) window[i] = random() % V;
    for (int b = 0; b < B; b++) positions[b] = random() % P;
    for (int i = 0; i < B * P; i++) coins[i] = random() % (1 << 20) / double(1 << 20);
}
