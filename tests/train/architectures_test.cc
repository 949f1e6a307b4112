// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "tools/train/network.h"

namespace oktopk::architectures_test {
namespace {

constexpr Shape kFlat = {.channels = 64};
constexpr Shape kImage = {.channels = 1, .height = 28, .width = 28};

TEST(MakeNetwork, mlp_has_two_hidden_layers_by_default) {
  const auto network = make_network("mlp", kFlat, 10);
  EXPECT_EQ(network->name(), "mlp:256,128");
  EXPECT_EQ(network->tensors(), (std::vector<Index>{64 * 256, 256, 256 * 128, 128, 128 * 10, 10}));
  EXPECT_EQ(network->parameters(), 50826u);
}

TEST(MakeNetwork, mlp_with_sizes_has_those) {
  EXPECT_EQ(make_network("mlp:300,100", kImage, 10)->parameters(), 266610u);
  EXPECT_EQ(make_network("mlp:7", {3, 2, 2}, 2)->tensors(), (std::vector<Index>{84, 7, 14, 2}));
}

TEST(MakeNetwork, conv_has_two_convolutions_and_a_dense_layer) {
  const auto network = make_network("conv", kImage, 10);
  EXPECT_EQ(network->name(), "conv:8,16");
  EXPECT_EQ(network->tensors(), (std::vector<Index>{9 * 8, 8, 9 * 8 * 16, 16, 7 * 7 * 16 * 10, 10}));
  EXPECT_EQ(make_network("conv:16,32", {3, 9, 15}, 5)->tensors(),
            (std::vector<Index>{27 * 16, 16, 9 * 16 * 32, 32, 2 * 3 * 32 * 5, 5}));
}

TEST(MakeNetwork, conv_of_samples_that_are_no_images_throws) {
  EXPECT_THROW(make_network("conv", kFlat, 10), UsageError);
  EXPECT_THROW(make_network("conv", {1, 8, 7}, 10), UsageError);
  EXPECT_THROW(make_network("conv", {1, 7, 8}, 10), UsageError);
  EXPECT_THROW(make_network("conv", {1, 2048, 2048}, 10), UsageError);
  EXPECT_NO_THROW(make_network("conv", {1, 8, 8}, 10));
}

TEST(MakeNetwork, nonsense_throws_and_names_the_text_and_what_there_is) {
  for (const std::string spec :
       {"", "mpl", "mlp ", "mlp:", "mlp:0", "mlp:-5", "mlp:12,", "mlp:,12", "mlp:1,,2", "mlp:1x", "mlp:1 ,2",
        "mlp:65537", "mlp:99999999999999999999", "mlp:1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "conv:8", "conv:8,16,32",
        "conv:8,0", "conv:8,1025", "conv:8;16"}) {
    try {
      make_network(spec, kImage, 10);
      FAIL() << spec << " was taken";
    } catch (const UsageError& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("'" + spec + "'"), std::string::npos) << text;
      EXPECT_NE(text.find("mlp:H1"), std::string::npos) << text;
      EXPECT_NE(text.find("conv:C1"), std::string::npos) << text;
    }
  }
}

TEST(MakeNetwork, impossible_ends_throw) {
  EXPECT_THROW(make_network("mlp", {0, 1, 1}, 10), UsageError);
  EXPECT_THROW(make_network("mlp", kFlat, 1), UsageError);
  EXPECT_THROW(make_network("mlp:65536", {1, 1024, 1024}, 10), UsageError);  // 2^36 weights
}

}  // namespace
}  // namespace oktopk::architectures_test
