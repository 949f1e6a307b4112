// SPDX-License-Identifier: Apache-2.0
// Helpers around MPI's calls: errors as text and as return codes, and messages of more bytes than an int can count.
// Internal to the transport "mpi".
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/comm/mpi_comm.h"

namespace oktopk {

inline std::string mpi_error_text(int code) {
  char buffer[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, buffer, &length) != MPI_SUCCESS) {
    return "MPI error " + std::to_string(code);
  }
  return std::string(buffer, static_cast<std::size_t>(length));
}

// The name of a thread level, as MPI has it.
inline std::string mpi_thread_level(int level) {
  if (level == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
  if (level == MPI_THREAD_FUNNELED) return "MPI_THREAD_FUNNELED";
  if (level == MPI_THREAD_SERIALIZED) return "MPI_THREAD_SERIALIZED";
  return level == MPI_THREAD_MULTIPLE ? "MPI_THREAD_MULTIPLE" : std::to_string(level);
}

// Describes `bytes` bytes to MPI, whose counts are int: directly, or as one element of a derived type.
class MpiShape {
 public:
  MpiShape(std::size_t bytes, std::size_t chunk) {
    if (bytes <= chunk) {
      count_ = static_cast<int>(bytes);
      return;
    }
    const std::size_t chunks = bytes / chunk;
    require(chunks <= INT_MAX, "mpi: a message of ", bytes, " bytes");
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(static_cast<int>(chunk), MPI_BYTE, &block);
    const int lengths[] = {static_cast<int>(chunks), static_cast<int>(bytes % chunk)};
    const MPI_Aint places[] = {0, static_cast<MPI_Aint>(chunks * chunk)};
    const MPI_Datatype types[] = {block, MPI_BYTE};
    MPI_Type_create_struct(2, lengths, places, types, &type_);
    MPI_Type_commit(&type_);
    MPI_Type_free(&block);
    count_ = 1;
  }
  MpiShape(const MpiShape&) = delete;
  MpiShape& operator=(const MpiShape&) = delete;
  // MPI keeps the type for as long as a started message needs it.
  ~MpiShape() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

// While it lives, errors are return codes also in calls that name no communicator, such as MPI_Test. MPI gives those
// errors to the handler of MPI_COMM_WORLD (MPI 3) or MPI_COMM_SELF (MPI 4), which ends the program by default. Does
// nothing for a simulator (blocking): its ranks share those handlers, and it ends the program with a message.
class MpiErrorsReturn {
 public:
  explicit MpiErrorsReturn(bool blocking) : is_active_(!blocking) {
    if (!is_active_) return;
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      MPI_Comm_get_errhandler(comms_[i], &saved_[i]);
      MPI_Comm_set_errhandler(comms_[i], MPI_ERRORS_RETURN);
    }
  }
  MpiErrorsReturn(const MpiErrorsReturn&) = delete;
  MpiErrorsReturn& operator=(const MpiErrorsReturn&) = delete;
  ~MpiErrorsReturn() {
    if (!is_active_) return;
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      MPI_Comm_set_errhandler(comms_[i], saved_[i]);
      MPI_Errhandler_free(&saved_[i]);
    }
  }

 private:
  std::array<MPI_Comm, 2> comms_{MPI_COMM_WORLD, MPI_COMM_SELF};
  std::array<MPI_Errhandler, 2> saved_{};
  bool is_active_;
};

}  // namespace oktopk
