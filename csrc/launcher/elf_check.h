// The driver takes a cubin without its length, and so trusts the sizes inside. This checks those that decide how far it
// reads, to turn a truncated file into an error instead of a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ffpa::launcher {

// What is wrong with a 64-bit little-endian ELF image, or null.
inline const char* FindElfDefect(const char* data, std::size_t size) {
  constexpr unsigned char kMagic[] = {0x7f, 'E', 'L', 'F', 2, 1};  // then 64-bit, little-endian
  constexpr std::size_t kHeader = 64;
  constexpr std::size_t kProgramHeader = 56;
  constexpr std::size_t kSectionHeader = 64;
  constexpr std::uint32_t kNoBits = 8;
  constexpr std::uint16_t kCudaMachine = 190;
  auto read = [data](std::size_t offset, auto& value) { std::memcpy(&value, data + offset, sizeof(value)); };
  auto outside = [size](std::uint64_t offset, std::uint64_t bytes) { return offset > size || bytes > size - offset; };

  if (size < kHeader) return "it is shorter than an ELF header";
  if (std::memcmp(data, kMagic, sizeof(kMagic)) != 0) return "it is not a 64-bit ELF file";
  std::uint16_t machine;
  read(18, machine);
  // The driver loads a library lazily, and would only find this out when the kernel is looked for.
  if (machine != kCudaMachine) return "it is not code for an NVIDIA GPU";
  std::uint64_t programs, sections;
  std::uint16_t program_size, program_count, section_size, section_count;
  read(32, programs);
  read(40, sections);
  read(54, program_size);
  read(56, program_count);
  read(58, section_size);
  read(60, section_count);
  if (program_count != 0 && program_size != kProgramHeader) return "its program headers have an unknown size";
  if (outside(programs, program_count * kProgramHeader)) return "it ends before its program headers";
  if (section_count == 0 || section_size != kSectionHeader) return "it has no sections";
  if (outside(sections, section_count * kSectionHeader)) return "it ends before its section headers";
  for (std::uint16_t i = 0; i < section_count; ++i) {
    const std::size_t header = sections + i * kSectionHeader;
    std::uint32_t type;
    std::uint64_t offset, bytes;
    read(header + 4, type);
    read(header + 24, offset);
    read(header + 32, bytes);
    if (type != kNoBits && outside(offset, bytes)) return "it ends inside a section";
  }
  return nullptr;
}

}  // namespace ffpa::launcher
