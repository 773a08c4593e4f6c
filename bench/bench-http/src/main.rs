//! What serving agents costs: Umbel's server beside a raw handler that writes the same bytes, each a process of its own.
//! `cargo xtask bench http` makes a table of it.
//!
//! # Layout
//! - `agents.rs`: what Umbel serves; `raw.rs`: the handler beside it; `serve.rs`: either as a process
//! - `client.rs`: the other end of the wire; `child.rs`: a server that was started, and what it has used
//! - `load.rs`, `memory.rs`, `history.rs`: what is measured; `counted.rs`: the same work for callgrind; `routes.rs`: what
//!   requests cost by their size

mod agents;
mod child;
mod client;
mod counted;
mod history;
mod load;
mod memory;
mod raw;
mod routes;
mod serve;

const USAGE: &str = "usage: bench-http COMMAND

commands:
  serve umbel STORE THREADS KEPT       serves agents of Umbel until its input ends; KEPT are bytes of frames of old runs
  serve raw STREAM THREADS             serves a stream that was recorded into a file, without and with reading requests
  record SCENARIO FILE                 the stream of one run (chat, paced, tool)
  load SCENARIO CONNECTIONS RUNS ROUNDS STORE
                                       runs at once, beside the raw handler: CPU, rate, waits
  memory start|threads|streams COUNT   memory at the start, per kept thread, per open stream
  history TURNS THREADS                CPU of a turn of that number with the whole conversation sent again, beside raw
  syncs FILE COUNT                     how long a page takes to the disk
  counted umbel|raw|parse SCENARIO RUNS STORE
                                       so many runs, one after the other, of a server under callgrind: instructions
  shapes                               the requests that `request` knows
  request SHAPE SIZE COUNT             instructions of so many requests of that shape and size, and of what is needed before
  counted-turns umbel|parse TURNS MORE instructions of so many more turns of a thread that has so many";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| -> usize { text.parse().expect("a number") };
    match args[..] {
        ["serve", "umbel", store, threads, kept] => serve::umbel(store, number(threads), number(kept)),
        ["serve", "raw", stream, threads] => serve::raw(stream, number(threads)),
        ["record", scenario, file] => child::record(scenario, file.as_ref()),
        ["load", scenario, connections, runs, rounds, store] => {
            let told = load::beside(scenario, number(connections), number(runs), number(rounds), store);
            println!("{told}");
        }
        ["memory", "start", _] => println!("{}", memory::at_start()),
        ["memory", "threads", count] => println!("{}", memory::per_thread(number(count))),
        ["memory", "streams", count] => println!("{}", memory::per_stream(number(count))),
        ["history", turns, threads] => println!("{}", history::turn(number(turns), number(threads))),
        ["syncs", file, count] => println!("{}", load::syncs(file, number(count))),
        ["counted", what, scenario, runs, store] => {
            println!("{}", counted::runs(what, scenario, number(runs), store));
        }
        ["shapes"] => println!("{}", routes::SHAPES.join("\n")),
        ["request", shape, size, count] => {
            println!("{}", routes::requests(shape, number(size), number(count)));
        }
        ["counted-turns", what, turns, more] => {
            println!("{}", counted::turns(what, number(turns), number(more)));
        }
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}
