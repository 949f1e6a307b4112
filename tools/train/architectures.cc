// SPDX-License-Identifier: Apache-2.0
// Networks by name: a row per architecture, with the layer sizes that are taken when none are
// given.
#include <array>
#include <charconv>

#include "oktopk/base/error.h"
#include "tools/train/network.h"

namespace oktopk {
namespace {

using Layers = std::vector<std::unique_ptr<Layer>>;
using Sizes = std::vector<int>;

constexpr int kLargestImage = 1 << 20;  // pixels
constexpr int kSmallestImage = 8;       // two rounds of pooling leave something to look at

// What a network has at its two ends: samples come in, a logit for each class goes out.
struct Ends {
  Shape shape;
  int classes = 0;
};

Layers multilayer_perceptron(const Sizes& sizes, const Ends& ends) {
  Layers layers;
  int inputs = ends.shape.features();
  for (const int size : sizes) {
    layers.push_back(make_dense(inputs, size));
    layers.push_back(make_relu(size));
    inputs = size;
  }
  layers.push_back(make_dense(inputs, ends.classes));
  return layers;
}

Layers convolutional(const Sizes& sizes, const Ends& ends) {
  Shape shape = ends.shape;
  require(shape.pixels() <= kLargestImage, "network 'conv' takes images of up to ", kLargestImage,
          " pixels, and the samples have ", shape.pixels());
  require(shape.height >= kSmallestImage && shape.width >= kSmallestImage, "network 'conv' needs images of at least ",
          kSmallestImage, " x ", kSmallestImage, ", and the samples are ", shape.height, " x ", shape.width,
          "; use 'mlp'");
  Layers layers;
  for (const int channels : sizes) {
    layers.push_back(make_convolution(shape, channels));
    shape.channels = channels;
    layers.push_back(make_relu(shape.features()));
    layers.push_back(make_max_pool(shape));
    shape.height /= 2;
    shape.width /= 2;
  }
  layers.push_back(make_dense(shape.features(), ends.classes));
  return layers;
}

struct Architecture {
  std::string_view name;
  std::string_view sizes;  // when none are given
  std::size_t fewest, most;
  int largest;  // size
  Layers (*layers)(const Sizes& sizes, const Ends& ends);
};

constexpr std::array<Architecture, 2> kArchitectures = {{
    {"mlp", "256,128", 1, 16, 1 << 16, multilayer_perceptron},
    {"conv", "8,16", 2, 2, 1 << 10, convolutional},
}};

[[noreturn]] void refuse(std::string_view spec, std::string_view why) {
  fail<UsageError>("network '", spec, "': ", why,
                   "; there are: mlp, mlp:H1,H2,... (1 to 16 hidden layers of 1 to 65536), conv, "
                   "conv:C1,C2 (two convolutions of 1 to 1024 channels)");
}

// Empty when `text` is anything but numbers from 1 to `largest`, separated by commas.
Sizes parse_sizes(std::string_view text, int largest) {
  Sizes sizes;
  const char* p = text.data();
  const char* end = p + text.size();
  while (true) {
    int size = 0;
    const auto [next, error] = std::from_chars(p, end, size);
    if (error != std::errc() || size < 1 || size > largest) return {};
    sizes.push_back(size);
    if (next == end) return sizes;
    if (*next != ',') return {};
    p = next + 1;
  }
}

const Architecture& find_architecture(std::string_view name, std::string_view spec) {
  for (const Architecture& a : kArchitectures)
    if (a.name == name) return a;
  refuse(spec, "unknown");
}

}  // namespace

std::unique_ptr<Network> make_network(const std::string& spec, const Shape& shape, int classes) {
  require(shape.channels >= 1 && shape.height >= 1 && shape.width >= 1, "samples of ", shape.channels, " x ",
          shape.height, " x ", shape.width, ": each must be at least 1");
  require(classes >= 2, classes, " classes: must be at least 2");
  const std::string_view text = spec;
  const auto colon = text.find(':');
  const Architecture& a = find_architecture(text.substr(0, colon), spec);
  const auto written = colon == std::string_view::npos ? a.sizes : text.substr(colon + 1);
  const Sizes sizes = parse_sizes(written, a.largest);
  if (sizes.size() < a.fewest || sizes.size() > a.most) refuse(spec, "not its sizes");
  return std::make_unique<Network>(std::string(a.name) + ":" + std::string(written),
                                   a.layers(sizes, {.shape = shape, .classes = classes}));
}

}  // namespace oktopk
