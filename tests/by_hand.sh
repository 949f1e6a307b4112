#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A job over tcp without a launcher: `oktopk run --serve-only` at a free port, three ranks with flags, a caller with a wrong
# secret that is refused, and SIGTERM at the end. The command is the first argument.
set -eu
oktopk=$1
folder=$(mktemp -d)
umask 077 # a secret is for its owner alone
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null; rm -rf "$folder"' EXIT
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$folder/secret"
echo "another secret, long enough" >"$folder/wrong"
export OKTOPK_RANK=77 OKTOPK_SIZE=78 OKTOPK_SECRET=short # flags win over these

# Waits until the text stands in the file.
await() {
  tries=0
  until grep -q "$1" "$2"; do
    tries=$((tries + 1))
    test $tries -lt 300 || { echo "no '$1' came"; cat "$folder/out" "$folder/err"; exit 1; }
    sleep 0.1
  done
}

"$oktopk" run --serve-only --rendezvous 127.0.0.1:0 --secret-file "$folder/secret" --encrypt >"$folder/out" 2>"$folder/err" &
server=$!
await "listens at" "$folder/out"
address=$(sed -n 's/.*listens at //p' "$folder/out")

pids=
for rank in 0 1 2; do
  "$oktopk" bench --transport tcp --rank $rank --world-size 3 --rendezvous "$address" --secret-file "$folder/secret" \
    --encrypt --preset circulant -b 8K --iters 2 -c &
  pids="$pids $!"
done
for pid in $pids; do wait "$pid"; done

# A rank with another secret is refused, and the server says so.
"$oktopk" tune --links --transport tcp --rank 1 --world-size 2 --rendezvous "$address" --secret-file "$folder/wrong" \
  --encrypt >/dev/null 2>&1 &
stranger=$!
await "oktopk run: refused" "$folder/err"
kill $stranger
wait $stranger || true

kill -TERM $server
wait $server
server=
cat "$folder/out" "$folder/err"
echo "by hand: all fine"
