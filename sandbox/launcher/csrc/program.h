// A loaded candidate: machine code plus resolved launch steps. Counted references, so that a program stays loaded while
// any thread runs it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi.h"

namespace ca {

// A tensor in a buffer, as the copy engine reads it: shape from the contiguous dimension on, strides in bytes of the
// others, and the box that one copy brings.
struct Mapped {
  int64_t offset = 0;  // bytes
  int type = 0;
  std::vector<uint64_t> shape, strides;
  std::vector<uint32_t> box;
};

// A kernel argument: the address of buffer `buffer`, what describes it (`mapped`), or (buffer < 0) the constant in
// `bytes`.
struct Argument {
  int buffer = -1;
  std::array<unsigned char, 8> bytes{};
  std::optional<Mapped> mapped;
};

struct Step {
  std::string kernel;
  std::array<unsigned, 3> grid{1, 1, 1};
  std::array<unsigned, 3> block{1, 1, 1};
  std::array<unsigned, 3> cluster{1, 1, 1};
  bool has_cluster = false;
  bool dependent = false;  // the kernel waits for the one before it by itself, and may start earlier
  bool cooperative = false;  // all blocks are on the device at once, or the driver refuses the launch
  unsigned shared_bytes = 0;
  std::vector<Argument> arguments;
};

class Program {
 public:
  virtual ~Program() = default;
  // Returns 0, or a code with the text in last_error().
  virtual int launch(void* const* buffers, void* stream, int32_t device) = 0;
  // What the machine says about each kernel ("registers", "shared_bytes", "local_bytes"); empty on cpu.
  virtual std::map<std::string, std::map<std::string, int>> facts(int32_t device) = 0;

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::atomic<int64_t> references_{1};
};

// Both throw std::runtime_error with the loader's message.
Program* load_cpu(const std::string& path, const std::string& entry);
Program* load_cuda(const std::string& image, std::vector<Step> steps);

const CaLauncher& launcher_abi();
const char* last_error();

}  // namespace ca
