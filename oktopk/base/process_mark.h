// SPDX-License-Identifier: Apache-2.0
// Tells an object that owns threads, locks or connections whether it is still in the process that made it, or in a
// child of fork(). A child has a copy of the memory, but none of the threads; a lock may be held in it for ever, and
// its descriptors are those of the parent. So nothing there may lock, join, or write.
// The mark is a page of memory that the kernel fills with zeros in a child, so that asking costs no system call. Where
// the kernel cannot do that, the number of the process is compared.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <type_traits>
#include <utility>

namespace oktopk {

class ProcessMark {
 public:
  ProcessMark() : pid_(::getpid()) {
#ifdef MADV_WIPEONFORK
    void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (::madvise(page, kPage, MADV_WIPEONFORK) == 0) {
      is_here_ = static_cast<volatile char*>(page);
      *is_here_ = 1;
    } else {
      ::munmap(page, kPage);
    }
#endif
  }
  ~ProcessMark() {
    if (is_here_ != nullptr) ::munmap(const_cast<char*>(is_here_), kPage);
  }
  ProcessMark(const ProcessMark&) = delete;
  ProcessMark& operator=(const ProcessMark&) = delete;

  bool is_forked() const { return is_here_ != nullptr ? *is_here_ == 0 : ::getpid() != pid_; }

 private:
  static constexpr std::size_t kPage = 4096;  // the kernel rounds it up

  pid_t pid_;
  volatile char* is_here_ = nullptr;  // in the page; 0 in a child
};

// In a child: keeps for ever what its destructor would lock, join or send.
template <class T>
void leak(T&& value) {
  static_cast<void>(new std::remove_cvref_t<T>(std::forward<T>(value)));
}

}  // namespace oktopk
