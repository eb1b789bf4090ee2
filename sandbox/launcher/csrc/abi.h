// The C interface between the launcher extension and the torch operator library.
//
// The operator library is built later, against torch's headers; the launcher is built at install time and knows no
// torch. They meet only here, so one launcher runs a program while it is judged and after it is promoted.
#pragma once

#include <cstdint>

extern "C" {

struct CaLauncher {
  // Runs every step of the program. `buffers` holds the addresses in plan order; `stream` (a CUstream, null on cpu) and
  // `device` (ordinal, -1 on cpu) say where. Returns 0, or an error code after which last_error() has the text.
  int (*launch)(void* program, void* const* buffers, void* stream, int32_t device);
  void (*retain)(void* program);
  void (*release)(void* program);
  // The calling thread's last error; never null.
  const char* (*last_error)();
};

}  // extern "C"
