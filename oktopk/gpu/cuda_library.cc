// SPDX-License-Identifier: Apache-2.0
#include "oktopk/gpu/cuda_library.h"

#include <dlfcn.h>

#include <vector>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr const char* kLibrary = "liboktopk_cuda.so";

// The folder of the program or library that holds this function.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::vector<std::string> library_paths(const std::string& given) {
  if (!given.empty()) return {given};
  const std::string folder = own_folder();
  return {folder + '/' + kLibrary, folder + "/lib/" + kLibrary, folder + "/../lib/" + kLibrary, kLibrary};
}

}  // namespace

const OktopkCudaApi& load_cuda_api(const std::string& given) {
  std::string tried;
  for (const std::string& path : library_paths(given)) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      tried += std::string("\n  ") + dlerror();
      continue;
    }
    using Entry = const OktopkCudaApi* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, "oktopk_cuda_api"));
    if (entry == nullptr) fail<DeviceError>("cuda device: ", path, " has no function oktopk_cuda_api");
    const OktopkCudaApi* api = entry();
    if (api->version != OKTOPK_CUDA_API_VERSION)
      fail<DeviceError>("cuda device: ", path, " has interface version ", api->version, ", but this library needs ",
                        OKTOPK_CUDA_API_VERSION, ": install both from the same build");
    return *api;
  }
  fail<DeviceError>(
      "cuda device: the kernels' library cannot be loaded: build oktopk where nvcc is found, or give its "
      "path. Tried:",
      tried);
}

}  // namespace oktopk
