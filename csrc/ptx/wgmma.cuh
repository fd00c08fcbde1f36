// Warpgroup matrix multiply-accumulate (wgmma, sm_90a): D[64, N] += A[64, 16] B[16, N], float32 accumulators.
//
// Operands in shared memory are described by 64-bit words. All tiles here lie in rows of 64 elements (128 bytes) with
// the copy engine's 128-byte swizzle, in atoms of 8 rows, so that two things vary:
//   K-major (A; B = K in QK^T): rows are m or n, columns are k. A step of 16 k advances the address by 32 bytes.
//   N-major (B = V in PV): rows are k, columns are n; columns 64.. lie `column_group_bytes` further on. A step of 16 k
//   advances the address by 16 rows, 2048 bytes.
#pragma once

#include "core/types.cuh"
#include "core/variant.cuh"

namespace ffpa::ptx {

// A matrix descriptor; its low word holds the address and is the only part that moves.
struct WgmmaDescriptor {
  u32 low;
  u32 high;

  __device__ __forceinline__ WgmmaDescriptor advance(u32 bytes) const { return {low + bytes / 16, high}; }

  __device__ __forceinline__ u64 word() const { return static_cast<u64>(high) << 32 | low; }
};

inline constexpr u32 kSwizzleAtomBytes = 1024;

// Stride between 8-row groups in the high word, 128-byte swizzle in its top bits.
inline constexpr u32 kWgmmaHighWord = kSwizzleAtomBytes / 16 | 1u << 30;

// The bits above say which block of the cluster.
__device__ __forceinline__ u32 block_offset(u32 address) { return address & 0x3ffff; }

__device__ __forceinline__ WgmmaDescriptor k_major_descriptor(u32 address) {
  return {block_offset(address) / 16 | 1u << 16, kWgmmaHighWord};
}

__device__ __forceinline__ WgmmaDescriptor mn_major_descriptor(u32 address, u32 column_group_bytes) {
  return {block_offset(address) / 16 | column_group_bytes / 16 << 16, kWgmmaHighWord};
}

// Orders register writes before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `kPending` of the committed groups are running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving reads and writes of accumulators across this point: wgmma writes them asynchronously,
// between the instruction and its wait.
template <int kCount>
__device__ __forceinline__ void pin_accumulators(float* accumulators) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

enum class BMajor : int { k = 0, n = 1 };

// Wgmma<N>::ss takes A from shared memory, ::rs from four registers a thread. `kAccumulate` 0 overwrites the
// accumulators. Thread t of the warpgroup holds rows 16 * (t / 32) + t % 32 / 4 (+ 8), columns 8 * i + t % 4 * 2 (+ 1).
template <int N>
struct Wgmma;

#define FFPA_WGMMA_REGS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FFPA_WGMMA_REGS_16 FFPA_WGMMA_REGS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FFPA_WGMMA_REGS_24 FFPA_WGMMA_REGS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FFPA_WGMMA_REGS_32 FFPA_WGMMA_REGS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FFPA_WGMMA_REGS_40 FFPA_WGMMA_REGS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FFPA_WGMMA_REGS_48 FFPA_WGMMA_REGS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FFPA_WGMMA_REGS_56 FFPA_WGMMA_REGS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FFPA_WGMMA_REGS_64 FFPA_WGMMA_REGS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FFPA_WGMMA_REGS_72 FFPA_WGMMA_REGS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FFPA_WGMMA_REGS_80 FFPA_WGMMA_REGS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FFPA_WGMMA_REGS_88 FFPA_WGMMA_REGS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FFPA_WGMMA_REGS_96 FFPA_WGMMA_REGS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FFPA_WGMMA_REGS_104 FFPA_WGMMA_REGS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define FFPA_WGMMA_REGS_112 FFPA_WGMMA_REGS_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define FFPA_WGMMA_REGS_120 FFPA_WGMMA_REGS_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define FFPA_WGMMA_REGS_128 FFPA_WGMMA_REGS_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define FFPA_WGMMA_ACC_8 "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
#define FFPA_WGMMA_ACC_16 \
  FFPA_WGMMA_ACC_8, "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
#define FFPA_WGMMA_ACC_24                                                                                       \
  FFPA_WGMMA_ACC_16, "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), \
      "+f"(c[23])
#define FFPA_WGMMA_ACC_32                                                                                       \
  FFPA_WGMMA_ACC_24, "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), \
      "+f"(c[31])
#define FFPA_WGMMA_ACC_40                                                                                       \
  FFPA_WGMMA_ACC_32, "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), \
      "+f"(c[39])
#define FFPA_WGMMA_ACC_48                                                                                       \
  FFPA_WGMMA_ACC_40, "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), \
      "+f"(c[47])
#define FFPA_WGMMA_ACC_56                                                                                       \
  FFPA_WGMMA_ACC_48, "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), \
      "+f"(c[55])
#define FFPA_WGMMA_ACC_64                                                                                       \
  FFPA_WGMMA_ACC_56, "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), \
      "+f"(c[63])
#define FFPA_WGMMA_ACC_72                                                                                       \
  FFPA_WGMMA_ACC_64, "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), \
      "+f"(c[71])
#define FFPA_WGMMA_ACC_80                                                                                       \
  FFPA_WGMMA_ACC_72, "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), \
      "+f"(c[79])
#define FFPA_WGMMA_ACC_88                                                                                       \
  FFPA_WGMMA_ACC_80, "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), \
      "+f"(c[87])
#define FFPA_WGMMA_ACC_96                                                                                       \
  FFPA_WGMMA_ACC_88, "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), \
      "+f"(c[95])
#define FFPA_WGMMA_ACC_104                                                                                         \
  FFPA_WGMMA_ACC_96, "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99]), "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), \
      "+f"(c[103])
#define FFPA_WGMMA_ACC_112                                                                                \
  FFPA_WGMMA_ACC_104, "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]), \
      "+f"(c[110]), "+f"(c[111])
#define FFPA_WGMMA_ACC_120                                                                                \
  FFPA_WGMMA_ACC_112, "+f"(c[112]), "+f"(c[113]), "+f"(c[114]), "+f"(c[115]), "+f"(c[116]), "+f"(c[117]), \
      "+f"(c[118]), "+f"(c[119])
#define FFPA_WGMMA_ACC_128                                                                                \
  FFPA_WGMMA_ACC_120, "+f"(c[120]), "+f"(c[121]), "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), \
      "+f"(c[126]), "+f"(c[127])

// R and the numbers after it name the operands behind the N / 2 accumulators.
#define FFPA_WGMMA_SS(N, R, R1, R2, R3, TYPE)                                                           \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %" #R2                               \
               ", 0;\n"                                                                                 \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" FFPA_WGMMA_REGS_##R \
               "}, %" #R ", %" #R1 ", accumulate, 1, 1, 0, %" #R3 ";\n}\n"                              \
               : FFPA_WGMMA_ACC_##R                                                                     \
               : "l"(a.word()), "l"(b.word()), "n"(kAccumulate), "n"(static_cast<int>(kMajor)))

#define FFPA_WGMMA_RS(N, R, R1, R2, R3, R4, R5, R6, TYPE)                                               \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %" #R5                               \
               ", 0;\n"                                                                                 \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" FFPA_WGMMA_REGS_##R \
               "}, {%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", accumulate, 1, 1, %" #R6 ";\n}\n" \
               : FFPA_WGMMA_ACC_##R                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.word()), "n"(kAccumulate),           \
                 "n"(static_cast<int>(kMajor)))

#define FFPA_WGMMA_SHAPE(N, R, R1, R2, R3, R4, R5, R6)                                          \
  template <>                                                                                   \
  struct Wgmma<N> {                                                                             \
    template <class Element, BMajor kMajor, int kAccumulate>                                    \
    static __device__ __forceinline__ void ss(float* c, WgmmaDescriptor a, WgmmaDescriptor b) { \
      if constexpr (is_same<Element, bf16>) {                                                   \
        FFPA_WGMMA_SS(N, R, R1, R2, R3, "bf16");                                                \
      } else {                                                                                  \
        FFPA_WGMMA_SS(N, R, R1, R2, R3, "f16");                                                 \
      }                                                                                         \
    }                                                                                           \
    template <class Element, BMajor kMajor, int kAccumulate>                                    \
    static __device__ __forceinline__ void rs(float* c, const u32* a, WgmmaDescriptor b) {      \
      if constexpr (is_same<Element, bf16>) {                                                   \
        FFPA_WGMMA_RS(N, R, R1, R2, R3, R4, R5, R6, "bf16");                                    \
      } else {                                                                                  \
        FFPA_WGMMA_RS(N, R, R1, R2, R3, R4, R5, R6, "f16");                                     \
      }                                                                                         \
    }                                                                                           \
  };

FFPA_WGMMA_SHAPE(32, 16, 17, 18, 19, 20, 21, 22)
FFPA_WGMMA_SHAPE(64, 32, 33, 34, 35, 36, 37, 38)
FFPA_WGMMA_SHAPE(80, 40, 41, 42, 43, 44, 45, 46)
FFPA_WGMMA_SHAPE(96, 48, 49, 50, 51, 52, 53, 54)
FFPA_WGMMA_SHAPE(112, 56, 57, 58, 59, 60, 61, 62)
FFPA_WGMMA_SHAPE(128, 64, 65, 66, 67, 68, 69, 70)
FFPA_WGMMA_SHAPE(160, 80, 81, 82, 83, 84, 85, 86)
FFPA_WGMMA_SHAPE(176, 88, 89, 90, 91, 92, 93, 94)
FFPA_WGMMA_SHAPE(192, 96, 97, 98, 99, 100, 101, 102)
FFPA_WGMMA_SHAPE(224, 112, 113, 114, 115, 116, 117, 118)
FFPA_WGMMA_SHAPE(256, 128, 129, 130, 131, 132, 133, 134)

#undef FFPA_WGMMA_SHAPE
#undef FFPA_WGMMA_RS
#undef FFPA_WGMMA_SS
#undef FFPA_WGMMA_REGS_8
#undef FFPA_WGMMA_REGS_16
#undef FFPA_WGMMA_REGS_24
#undef FFPA_WGMMA_REGS_32
#undef FFPA_WGMMA_REGS_40
#undef FFPA_WGMMA_REGS_48
#undef FFPA_WGMMA_REGS_56
#undef FFPA_WGMMA_REGS_64
#undef FFPA_WGMMA_REGS_72
#undef FFPA_WGMMA_REGS_80
#undef FFPA_WGMMA_REGS_88
#undef FFPA_WGMMA_REGS_96
#undef FFPA_WGMMA_REGS_104
#undef FFPA_WGMMA_REGS_112
#undef FFPA_WGMMA_REGS_120
#undef FFPA_WGMMA_REGS_128
#undef FFPA_WGMMA_ACC_8
#undef FFPA_WGMMA_ACC_16
#undef FFPA_WGMMA_ACC_24
#undef FFPA_WGMMA_ACC_32
#undef FFPA_WGMMA_ACC_40
#undef FFPA_WGMMA_ACC_48
#undef FFPA_WGMMA_ACC_56
#undef FFPA_WGMMA_ACC_64
#undef FFPA_WGMMA_ACC_72
#undef FFPA_WGMMA_ACC_80
#undef FFPA_WGMMA_ACC_88
#undef FFPA_WGMMA_ACC_96
#undef FFPA_WGMMA_ACC_104
#undef FFPA_WGMMA_ACC_112
#undef FFPA_WGMMA_ACC_120
#undef FFPA_WGMMA_ACC_128

}  // namespace ffpa::ptx
