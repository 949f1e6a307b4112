// SPDX-License-Identifier: Apache-2.0
// Numbers and lists as people write and read them on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace oktopk {

// "1000", "64K", "16M", "1G": K = 1024 and so on, as nccl-tests has it. UsageError names the text.
std::uint64_t parse_count(std::string_view text);

std::string format_seconds(double seconds);  // "12.3 us", "1.23 ms"
std::string format_bytes(double bytes);      // "123 B", "12.3 KiB"

// "a,b,c"; "all" stands for all of `known`. Every name is checked by the caller.
std::vector<std::string> split_names(const std::string& text, const std::vector<std::string>& known);

// "1,2,3" as numbers >= 1. UsageError names the text and `what`.
std::vector<int> parse_ranks(const std::string& text, std::string_view what);

// "0.01,0.1" as numbers in (0, 1]. UsageError likewise.
std::vector<double> parse_densities(const std::string& text, std::string_view what);

}  // namespace oktopk
