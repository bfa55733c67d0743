// Draws one token per row from logits [rows, vocab], one block of 1024 threads per row.
//
// The kept tokens are the best `top_k` (0: all), and of those the fewest best ones that together
// reach `top_p`; the lower id wins a tie. Random numbers are Philox4x32-10 with the sample's seed
// as key and the index of the token in the answer as counter, so a draw depends on nothing else.
// All sums are taken in an order that never changes.

#define THREADS 1024

struct Choice {
    u32 token;
    float logprob;    // under the whole softmax at the temperature
    float truncated;  // within the kept tokens
    u32 unused;
};

// A number in [0, 1) with 53 bits.
__device__ double philox(u64 seed, u32 counter) {
    u32 x[4] = {counter, 0, 0, 0}, k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        u32 h0 = __umulhi(0xD2511F53u, x[0]), l0 = 0xD2511F53u * x[0];
        u32 h1 = __umulhi(0xCD9E8D57u, x[2]), l1 = 0xCD9E8D57u * x[2];
        x[0] = h1 ^ x[1] ^ k0;
        x[1] = l1;
        x[2] = h0 ^ x[3] ^ k1;
        x[3] = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (double)(((u64)x[0] << 32 | x[1]) >> 11) * 0x1p-53;
}

__device__ __forceinline__ float value(const bf16* p) { return up(*p); }
__device__ __forceinline__ float value(const float* p) { return *p; }

// Unsigned numbers in the order of the values.
__device__ __forceinline__ u32 order(float v) {
    u32 bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ u32 key(const bf16*, float v) { return order(v) >> 16; }
__device__ __forceinline__ u32 key(const float*, float v) { return order(v); }

// Elements i .. i + 7 of a row, minus infinity beyond its end.
template <class T>
__device__ __forceinline__ void load8(const T* row, int i, int vocab, float* v) {
    if (sizeof(T) == 2 && vocab % 8 == 0) {
        unpack(*(const uint4*)(row + i), v);
        return;
    }
    for (int e = 0; e < 8; e++) v[e] = i + e < vocab ? value(row + i + e) : -INFINITY;
}

// Calls `f(id, value)` for every element of the row that is this thread's.
template <class T, class F>
__device__ __forceinline__ void each(const T* row, int vocab, F f) {
    float v[8];
    for (int i = threadIdx.x * 8; i < vocab; i += THREADS * 8) {
        load8(row, i, vocab, v);
        for (int e = 0; e < 8; e++)
            if (i + e < vocab) f(i + e, v[e]);
    }
}

// Inclusive sum over the threads before and at this one; `scratch` holds 32 numbers.
template <class N>
__device__ N block_scan(N x, N* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int m = 1; m < 32; m *= 2) {
        N other = __shfl_up_sync(~0u, x, m);
        if (lane >= m) x += other;
    }
    if (lane == 31) scratch[warp] = x;
    __syncthreads();
    N before = 0;
    for (int i = 0; i < warp; i++) before += scratch[i];
    __syncthreads();
    return before + x;
}

// What the general path keeps: keys above `least`, and the first `ties` at it.
struct Kept {
    u32 least;
    int ties;
};

// Walks the kept tokens in order of id. Answers their mass; with `target` from 0 up, writes the
// token at which the running mass passes it.
template <class T>
__device__ float walk(const T* row, int vocab, Kept kept, float most, float inv_t, float target,
                      u32* token, float* scratch, int* counts) {
    __shared__ float reached;
    __shared__ int seen;
    float running = 0;
    int tied = 0;
    for (int from = 0; from < vocab; from += THREADS * 8) {
        int i = from + threadIdx.x * 8, mine = 0;
        float v[8], w[8], sum = 0;
        for (int e = 0; e < 8; e++) v[e] = -INFINITY;
        if (i < vocab) load8(row, i, vocab, v);
        for (int e = 0; e < 8; e++) mine += i + e < vocab && key(row, v[e]) == kept.least;
        int ordinal = tied + block_scan(mine, counts) - mine;
        for (int e = 0; e < 8; e++) {
            u32 k = key(row, v[e]);
            bool in = i + e < vocab && (k > kept.least || (k == kept.least && ordinal < kept.ties));
            ordinal += i + e < vocab && k == kept.least;
            w[e] = in ? expf((v[e] - most) * inv_t) : 0;
            sum += w[e];
        }
        float after = running + block_scan(sum, scratch), before = after - sum;
        if (target >= 0 && before <= target && target < after) {
            // Rounding may leave the last step short of the target: then it is the last one.
            u32 found = ~0u;
            for (int e = 0; e < 8; e++) {
                if (w[e] <= 0 || (found != ~0u && before > target)) continue;
                before += w[e];
                found = i + e;
            }
            if (found != ~0u) atomicMin(token, found);
        }
        if (threadIdx.x == THREADS - 1) {
            reached = after;
            seen = ordinal;
        }
        __syncthreads();
        running = reached;
        tied = seen;
        __syncthreads();
    }
    return running;
}

// The kept set by bisection over the keys, for any top_k and top_p.
template <class T>
__device__ Kept bisect(const T* row, int vocab, int top_k, double top_p, float most, float inv_t,
                       float sum, float* scratch) {
    const int bits = sizeof(T) * 8;
    Kept kept = {0, vocab};
    // How many, or how much of the mass, lies at or above a key.
    auto count = [&](u32 least) {
        float n = 0;
        each(row, vocab, [&](int, float v) { n += key(row, v) >= least; });
        return block_sum(n, scratch);  // exact: below 2^24
    };
    auto mass = [&](u32 least) {
        float n = 0;
        each(row, vocab, [&](int, float v) {
            if (key(row, v) >= least) n += expf((v - most) * inv_t);
        });
        return block_sum(n, scratch);
    };
    auto weight = [&](u32 k) {
        u32 whole = sizeof(T) == 2 ? k << 16 | (k & 0x8000 ? 0 : 0xffff) : k;
        float v = __uint_as_float(whole & 0x80000000u ? whole & 0x7fffffffu : ~whole);
        return expf((v - most) * inv_t);
    };
    float total = sum;
    if (top_k > 0 && top_k < vocab) {
        for (int b = bits - 1; b >= 0; b--)
            if (count(kept.least | 1u << b) >= top_k) kept.least |= 1u << b;
        kept.ties = top_k - (int)count(kept.least + 1);
        total = mass(kept.least + 1) + kept.ties * weight(kept.least);
    }
    if (top_p < 1) {
        float wanted = (float)(top_p * total);
        u32 least = 0;
        for (int b = bits - 1; b >= 0; b--)
            if (mass(least | 1u << b) >= wanted) least |= 1u << b;
        if (least < kept.least) least = kept.least;
        float above = mass(least + 1), missing = (wanted - above) / weight(least);
        int ties = missing >= vocab ? vocab : (int)ceilf(missing);
        if (ties < 1) ties = above > 0 ? 0 : 1;
        if (least > kept.least || ties < kept.ties) kept.ties = ties;
        kept.least = least;
    }
    return kept;
}

template <class T>
__device__ void draw(const T* logits, int vocab, const u64* seeds, const int* indices,
                     const int* slots, float inv_t, int top_k, double top_p, int greedy,
                     u32* tokens, Choice* out) {
    __shared__ float scratch[32], values[THREADS], sorted[THREADS];
    __shared__ int counts[32], ids[THREADS], sorted_ids[THREADS], found;
    __shared__ u32 token;
    __shared__ float drawn, mass;
    const T* row = logits + (size_t)blockIdx.x * vocab;
    const int tid = threadIdx.x;
    float top = -INFINITY;
    each(row, vocab, [&](int, float v) { top = fmaxf(top, v); });
    const float most = block_max(top, scratch);
    float sum = 0;
    each(row, vocab, [&](int, float v) { sum += expf((v - most) * inv_t); });
    sum = block_sum(sum, scratch);
    if (tid == 0) {
        token = ~0u;
        found = 0;
        drawn = most;
        mass = 1;
    }
    __syncthreads();
    if (greedy) {
        u32 best = ~0u;
        if (top == most) each(row, vocab, [&](int i, float v) {
            if (v == most && i < best) best = i;
        });
        if (best != ~0u) atomicMin(&token, best);
        __syncthreads();
    } else {
        double u = philox(seeds[blockIdx.x], indices[blockIdx.x]);
        bool few = top_k > 0 && top_k <= THREADS && top_k < vocab;
        if (few) {
            // At least top_k threads hold an element as large as the top_k-th largest maximum.
            u32 bound = 0, mine = order(top);
            for (int b = 31; b >= 0; b--)
                if (__syncthreads_count(mine >= (bound | 1u << b)) >= top_k) bound |= 1u << b;
            if (mine >= bound) each(row, vocab, [&](int i, float v) {
                if (order(v) < bound) return;
                int at = atomicAdd(&found, 1);
                if (at >= THREADS) return;
                values[at] = v;
                ids[at] = i;
            });
            __syncthreads();
            few = found <= THREADS;
        }
        if (few) {
            if (tid < found) {
                float v = values[tid];
                int rank = 0, id = ids[tid];
                for (int n = 0; n < found; n++)
                    rank += order(values[n]) > order(v) || (order(values[n]) == order(v) && ids[n] < id);
                sorted[rank] = v;
                sorted_ids[rank] = id;
            }
            __syncthreads();
            if (tid < top_k) values[tid] = expf((sorted[tid] - most) * inv_t);
            __syncthreads();
            if (tid == 0) {
                double all = 0, kept = 0;
                int n = 0, at = 0;
                for (int i = 0; i < top_k; i++) all += values[i];
                for (; n < top_k && (n == 0 || top_p >= 1 || kept < top_p * all); n++)
                    kept += values[n];
                double left = u * kept;
                for (; at < n - 1 && (left -= values[at]) >= 0; at++) {}
                token = sorted_ids[at];
                mass = kept;
            }
            __syncthreads();
        } else {
            Kept kept = bisect(row, vocab, top_k, top_p, most, inv_t, sum, scratch);
            float all = walk(row, vocab, kept, most, inv_t, -1, &token, scratch, counts);
            float target = fminf((float)(u * all), __uint_as_float(__float_as_uint(all) - 1));
            walk(row, vocab, kept, most, inv_t, target, &token, scratch, counts);
            if (tid == 0) mass = all;
            __syncthreads();
        }
    }
    if (tid == 0) {
        // Nothing is found only where scores are not finite; the log-probability then is NaN.
        u32 chosen = token < vocab ? token : 0;
        float z = (value(row + chosen) - most) * inv_t;
        Choice c = {chosen, token < vocab ? z - logf(sum) : NAN, greedy ? 0 : z - logf(mass), 0};
        out[blockIdx.x] = c;
        if (tokens) tokens[slots[blockIdx.x]] = chosen;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sample_bf16(
    const bf16* logits, int vocab, const u64* seeds, const int* indices, const int* slots,
    float inv_t, int top_k, double top_p, int greedy, u32* tokens, Choice* out) {
    draw(logits, vocab, seeds, indices, slots, inv_t, top_k, top_p, greedy, tokens, out);
}

extern "C" __global__ void __launch_bounds__(THREADS) sample_f32(
    const float* logits, int vocab, const u64* seeds, const int* indices, const int* slots,
    float inv_t, int top_k, double top_p, int greedy, u32* tokens, Choice* out) {
    draw(logits, vocab, seeds, indices, slots, inv_t, top_k, top_p, greedy, tokens, out);
}
