// Types of all kernels. bfloat16 numbers are their 16 bits, so that no header is needed.
typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#undef INFINITY
#undef NAN
#define INFINITY __uint_as_float(0x7f800000u)
#define NAN __uint_as_float(0x7fffffffu)
