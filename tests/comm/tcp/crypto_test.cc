// SPDX-License-Identifier: Apache-2.0
// The cryptography against published vectors, and records that were changed on their way.
#include "oktopk/comm/tcp/crypto.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace oktopk::tcp_crypto_test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[static_cast<std::size_t>(byte >> 4)];
    text += "0123456789abcdef"[static_cast<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

TEST(TcpCrypto, hmac_is_that_of_rfc_4231) {
  EXPECT_EQ(hex(hmac_sha256("Jefe", bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(TcpCrypto, derived_key_is_that_of_rfc_5869) {
  std::string secret(22, '\x0b');
  std::string salt, info;
  for (char c = 0; c <= 12; ++c) salt += c;
  for (int c = 0xf0; c <= 0xf9; ++c) info += static_cast<char>(c);
  EXPECT_EQ(hex(derive_key(secret, bytes_of(salt), info)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
}

TEST(TcpCrypto, comparison_sees_every_byte) {
  const std::string text = "0123456789";
  EXPECT_TRUE(equal_in_constant_time(bytes_of(text), bytes_of(text)));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = 'x';
    EXPECT_FALSE(equal_in_constant_time(bytes_of(text), bytes_of(other)));
  }
  EXPECT_FALSE(equal_in_constant_time(bytes_of(text), bytes_of("012345678")));
}

TEST(TcpCrypto, random_bytes_differ) {
  Key a{}, b{};
  fill_random(a);
  fill_random(b);
  EXPECT_NE(a, b);
}

class Records : public testing::Test {
 protected:
  std::vector<std::byte> seal(const std::string& text) {
    std::vector<std::byte> sealed(text.size() + RecordCipher::kTagBytes);
    sealer.seal(bytes_of(text), sealed);
    return sealed;
  }
  bool open(std::span<const std::byte> sealed) {
    plain.resize(sealed.size() - RecordCipher::kTagBytes);
    return opener.open(sealed, std::as_writable_bytes(std::span(plain)));
  }

  static constexpr Key kKey{std::byte{7}};
  RecordCipher sealer{kKey}, opener{kKey};
  std::string plain;
};

TEST_F(Records, open_in_order_as_they_were) {
  for (const std::string text : {"a", "second", "", "the fourth one"}) {
    ASSERT_TRUE(open(seal(text)));
    EXPECT_EQ(plain, text);
  }
}

TEST_F(Records, equal_texts_look_different) { EXPECT_NE(seal("text"), seal("text")); }

TEST_F(Records, changed_bit_does_not_open) {
  std::vector<std::byte> sealed = seal("some text");
  sealed[3] ^= std::byte{1};
  EXPECT_FALSE(open(sealed));
}

TEST_F(Records, repeated_record_does_not_open) {
  const std::vector<std::byte> sealed = seal("once");
  EXPECT_TRUE(open(sealed));
  EXPECT_FALSE(open(sealed));
}

TEST_F(Records, left_out_record_is_noticed) {
  seal("first");
  EXPECT_FALSE(open(seal("second")));
}

}  // namespace
}  // namespace oktopk::tcp_crypto_test
