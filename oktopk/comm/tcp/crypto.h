// SPDX-License-Identifier: Apache-2.0
// The cryptography of transport "tcp", all of it from OpenSSL: random bytes, HMAC-SHA256, HKDF-SHA256 and AES-256-GCM.
// Only crypto.cc includes OpenSSL's headers. CommError when OpenSSL fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace oktopk {

using Key = std::array<std::byte, 32>;

void fill_random(std::span<std::byte> bytes);
Key hmac_sha256(std::string_view secret, std::span<const std::byte> text);
// A key for one purpose (`info`) from the secret and a salt that is used once.
Key derive_key(std::string_view secret, std::span<const std::byte> salt, std::string_view info);
// Takes the same time wherever two texts of one length differ.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Seals or opens the records of one direction of a connection, in order: record i has nonce i, which is never used
// twice. A record that was changed, repeated, left out or moved does not open.
class RecordCipher {
 public:
  static constexpr std::size_t kTagBytes = 16;

  explicit RecordCipher(const Key& key);
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  // REQUIRES: sealed.size() == plain.size() + kTagBytes.
  void seal(std::span<const std::byte> plain, std::span<std::byte> sealed);
  // False if the record is not authentic; `plain` is then not to be read. REQUIRES: sizes as above.
  bool open(std::span<const std::byte> sealed, std::span<std::byte> plain);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
  std::uint64_t number_ = 0;
};

}  // namespace oktopk
