// All kernels, to be called by name.
#include "device.h"

#include "common.cuh"
#include "elementwise.cu"
#include "rope.cu"
#include "attention.cu"
#include "gemv.cu"
#include "sample.cu"
#include "training.cu"

template <class... A, size_t... I>
static void call(void (*kernel)(A...), void** p, std::index_sequence<I...>) {
    kernel(*(A*)p[I]...);
}

extern "C" int launch(const char* name, const unsigned* grid, const unsigned* threads, void** p) {
    bool found = false;
    auto offer = [&]<class... A>(const char* its, void (*kernel)(A...)) {
        if (strcmp(its, name)) return;
        found = true;
        run({grid[0], grid[1], grid[2]}, {threads[0], threads[1], threads[2]},
            [&] { call(kernel, p, std::index_sequence_for<A...>()); });
    };
#define OFFER(kernel) offer(#kernel, kernel)
    OFFER(rms_norm);
    OFFER(swiglu);
    OFFER(embed);
    OFFER(rope_and_cache);
    OFFER(copy_block);
    OFFER(attend_64);
    OFFER(attend_128);
    OFFER(combine);
    OFFER(gemv);
    OFFER(gemv_swiglu);
    OFFER(sample_bf16);
    OFFER(sample_f32);
    OFFER(swiglu_back);
    OFFER(rotate);
    OFFER(rotate_back);
    OFFER(score);
    OFFER(score_back);
    OFFER(adamw);
    return found ? 0 : 1;
}
