// SPDX-License-Identifier: Apache-2.0
// Stands in for tcp*.cc and rendezvous*.cc where the library is built without OpenSSL.
#include "oktopk/base/error.h"
#include "oktopk/comm/elastic_world.h"
#include "oktopk/comm/transports.h"

namespace oktopk {
namespace {

[[noreturn]] void fail_without_tcp() {
  fail<UsageError>("tcp: this library was built without the transport \"tcp\"; it needs OpenSSL 3");
}

}  // namespace

bool tcp_available() { return false; }
std::unique_ptr<Communicator> make_tcp_world(const TcpOptions&) { fail_without_tcp(); }
std::unique_ptr<ElasticWorld> make_tcp_elastic_world(const TcpElasticOptions&) { fail_without_tcp(); }

void RefusalLog::add(std::string) {}
std::uint64_t RefusalLog::count() const { return 0; }
std::vector<std::string> RefusalLog::last() const { return {}; }
KeyValueStore make_file_store(const std::string&) { fail_without_tcp(); }
KeyValueStore make_server_store(const ServerStoreOptions&) { fail_without_tcp(); }
std::string make_random_secret() { fail_without_tcp(); }

class RendezvousServer::Service {};
RendezvousServer::RendezvousServer(const RendezvousServerOptions&) { fail_without_tcp(); }
RendezvousServer::~RendezvousServer() = default;
std::string RendezvousServer::address() const { fail_without_tcp(); }
const RefusalLog& RendezvousServer::refusals() const { fail_without_tcp(); }

}  // namespace oktopk
