#!/bin/bash
# Build every peer in release mode, run every measure, merge the JSON lines into results.json.
#   ./run.sh                 all peers, all measures
#   PEERS="bench-ours" ./run.sh
#   MEASURES="callgrind" ./run.sh        any of: throughput growth memory allocs callgrind long size team
set -eu
cd "$(dirname "$0")"
PEERS=${PEERS:-"bench-adk bench-rig bench-floor bench-umbel"}
MEASURES=${MEASURES:-"size throughput growth memory allocs callgrind"}
LONG=${LONG:-3000}
OUT=results.jsonl; touch $OUT
BIN=$(mktemp -d); trap 'rm -rf "$BIN"' EXIT
has() { case " $MEASURES " in *" $1 "*) true;; *) false;; esac; }
bin() { echo "${CARGO_TARGET_DIR:-target}/release/$1"; }
count() { valgrind --tool=callgrind --callgrind-out-file=/dev/null "$BIN/$p.timing" "$@" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'; }
for p in $PEERS; do
  nice cargo build --release -j2 -q -p $p
  cp "$(bin $p)" "$BIN/$p.timing"                                    # no counting allocator
  if has memory || has allocs; then
    nice cargo build --release -j2 -q -p $p --features harness/count-alloc
    cp "$(bin $p)" "$BIN/$p.counting"
  fi
  has size       && echo "{\"peer\":\"$p\",\"measure\":\"size\",\"result\":{\"stripped_bytes\":$(stat -c %s $BIN/$p.timing)}}" | tee -a $OUT
  has throughput && "$BIN/$p.timing" throughput | tee -a $OUT
  has growth     && "$BIN/$p.timing" growth | tee -a $OUT
  has memory     && { "$BIN/$p.timing" memory; "$BIN/$p.counting" memory; } | tee -a $OUT
  has allocs     && "$BIN/$p.counting" allocs | tee -a $OUT
  if has callgrind; then
    for s in text tool stream; do
      a=$(count fixed $s 50); b=$(count fixed $s 250)
      echo "{\"peer\":\"$p\",\"measure\":\"callgrind\",\"result\":{\"scenario\":\"$s\",\"instructions_per_run\":$(( (b - a) / 200 ))}}" | tee -a $OUT
    done
  fi
  if { has team || has callgrind; } && [ "$p" = bench-umbel ]; then   # two agents, the first hands over to the second; no peer has it
    a=$(count team 50); b=$(count team 250)
    echo "{\"peer\":\"$p\",\"measure\":\"callgrind\",\"result\":{\"scenario\":\"team\",\"instructions_per_run\":$(( (b - a) / 200 ))}}" | tee -a $OUT
  fi
  if has long; then   # instructions of one turn at the start and at the end of a long session (slow for peers that copy)
    for s in text tool; do
      near=$(( ($(count long $s 30) - $(count long $s 10)) / 20 )); far=$(( ($(count long $s $((LONG + 20))) - $(count long $s $LONG)) / 20 ))
      echo "{\"peer\":\"$p\",\"measure\":\"long\",\"result\":{\"scenario\":\"$s\",\"turns\":$LONG,\"near\":$near,\"far\":$far}}" | tee -a $OUT
    done
  fi
done
python3 - <<'PY'
import json
out = {}
for line in open("results.jsonl"):
    r = json.loads(line); name = r["peer"].replace("bench-", "").replace("adk-rust", "adk")
    slot = out.setdefault(name, {})
    if r["measure"] == "callgrind": slot.setdefault("callgrind", {})[r["result"]["scenario"]] = r["result"]["instructions_per_run"]
    elif r["measure"] == "long": slot.setdefault("long", {})[r["result"]["scenario"]] = r["result"]
    elif r["measure"] == "memory":  slot.setdefault("memory", {}).update({k: v for k, v in r["result"].items() if v is not None and not (k == "rss_kib_per_session" and "rss_kib_per_session" in slot.get("memory", {}))})
    else: slot[r["measure"]] = r["result"]
json.dump(out, open("results.json", "w"), indent=1); print("wrote results.json")
PY
