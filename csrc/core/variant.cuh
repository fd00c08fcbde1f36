// What a generated translation unit tells a kernel template. The build writes one such struct a variant:
//
//   struct Variant {
//     static constexpr int kArch = 890;            // 10 * sm number: 800, 890, 900, 1000, 1200
//     static constexpr int kSmemBlock = 101376;    // bytes a block can have on the arch the kernel is written for
//     using Element = ffpa::bf16;                  // or ffpa::fp16
//     static constexpr bool kAccF16 = false;
//     static constexpr int kHeadDim = 512;
//     static constexpr int kStages = 3;
//     static constexpr bool kBias = false;         // mask_kind boolean or additive
//     static constexpr bool kBiasF32 = false;      // mask_kind additive_f32
//     static constexpr bool kDropout = false;
//   };
//
// kArch names the arch that the kernel is designed for; an emulated variant is compiled for another one.
#pragma once

namespace ffpa {

struct bf16 {
  unsigned short bits;
};

struct fp16 {
  unsigned short bits;
};

}  // namespace ffpa
