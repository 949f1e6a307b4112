// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

void expect_crypto(bool holds, const char* operation) {
  if (!holds) fail<CommError>("tcp: OpenSSL failed: ", operation);
}

const unsigned char* to_openssl(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* to_openssl(std::span<std::byte> bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

}  // namespace

void fill_random(std::span<std::byte> bytes) {
  expect_crypto(RAND_bytes(to_openssl(bytes), static_cast<int>(bytes.size())) == 1, "RAND_bytes");
}

Key hmac_sha256(std::string_view secret, std::span<const std::byte> text) {
  Key result{};
  unsigned int size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), to_openssl(text),
                                   text.size(), to_openssl(std::span<std::byte>(result)), &size);
  expect_crypto(made != nullptr && size == result.size(), "HMAC");
  return result;
}

Key derive_key(std::string_view secret, std::span<const std::byte> salt, std::string_view info) {
  Key key{};
  std::size_t size = key.size();
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> context(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr),
                                                                            &EVP_PKEY_CTX_free);
  expect_crypto(context != nullptr && EVP_PKEY_derive_init(context.get()) > 0 &&
                    EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) > 0 &&
                    EVP_PKEY_CTX_set1_hkdf_salt(context.get(), to_openssl(salt), static_cast<int>(salt.size())) > 0 &&
                    EVP_PKEY_CTX_set1_hkdf_key(context.get(), reinterpret_cast<const unsigned char*>(secret.data()),
                                               static_cast<int>(secret.size())) > 0 &&
                    EVP_PKEY_CTX_add1_hkdf_info(context.get(), reinterpret_cast<const unsigned char*>(info.data()),
                                                static_cast<int>(info.size())) > 0 &&
                    EVP_PKEY_derive(context.get(), to_openssl(std::span<std::byte>(key)), &size) > 0,
                "HKDF");
  return key;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

struct RecordCipher::Context {
  std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> evp{EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free};
  Key key;

  // Starts a record: its number is the nonce.
  void start(std::uint64_t number, bool seals) {
    std::array<unsigned char, 12> nonce{};
    std::memcpy(nonce.data(), &number, sizeof number);
    expect_crypto(EVP_CipherInit_ex(evp.get(), nullptr, nullptr, nullptr, nonce.data(), seals ? 1 : 0) == 1,
                  "EVP_CipherInit_ex");
  }
};

RecordCipher::RecordCipher(const Key& key) : context_(std::make_unique<Context>()) {
  context_->key = key;
  expect_crypto(context_->evp != nullptr &&
                    EVP_CipherInit_ex(context_->evp.get(), EVP_aes_256_gcm(), nullptr,
                                      to_openssl(std::span<const std::byte>(context_->key)), nullptr, 1) == 1,
                "EVP_aes_256_gcm");
}

RecordCipher::~RecordCipher() { OPENSSL_cleanse(context_->key.data(), context_->key.size()); }

void RecordCipher::seal(std::span<const std::byte> plain, std::span<std::byte> sealed) {
  EVP_CIPHER_CTX* const evp = context_->evp.get();
  context_->start(number_++, true);
  int size = 0;
  int rest = 0;
  std::byte* const tag = sealed.data() + plain.size();
  expect_crypto(
      EVP_EncryptUpdate(evp, to_openssl(sealed), &size, to_openssl(plain), static_cast<int>(plain.size())) == 1,
      "EVP_EncryptUpdate");
  expect_crypto(EVP_EncryptFinal_ex(evp, to_openssl(sealed) + size, &rest) == 1, "EVP_EncryptFinal_ex");
  expect_crypto(EVP_CIPHER_CTX_ctrl(evp, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag) == 1, "the tag of a record");
}

bool RecordCipher::open(std::span<const std::byte> sealed, std::span<std::byte> plain) {
  EVP_CIPHER_CTX* const evp = context_->evp.get();
  context_->start(number_++, false);
  int size = 0;
  int rest = 0;
  std::array<std::byte, kTagBytes> tag;
  std::copy_n(sealed.data() + plain.size(), kTagBytes, tag.data());
  return EVP_DecryptUpdate(evp, to_openssl(plain), &size, to_openssl(sealed), static_cast<int>(plain.size())) == 1 &&
         EVP_CIPHER_CTX_ctrl(evp, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) == 1 &&
         EVP_DecryptFinal_ex(evp, to_openssl(plain) + size, &rest) == 1;
}

}  // namespace oktopk
