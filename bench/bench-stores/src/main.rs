//! What Umbel's stores cost: commits, fsyncs, bytes, time and instructions. `cargo xtask bench stores` makes a table of it.
//!
//! Each command does a fixed amount of work, so that the difference of two counts is what one unit of it costs.

mod appends;
mod commits;
mod size;
mod turns;

const USAGE: &str = "usage: bench-stores COMMAND

commands:
  turns URL text|tool MESSAGES COUNT   so many turns of a session that has so many messages; prints nothing
  commits URL text|tool COUNT          the transactions that so many turns wrote
  appends FILE EACH                    so many appends by each of 64 sessions; prints nothing
  rate URL FOLDER                      how fast 64 sessions append, beside one commit per event and one fsync in a folder
  size URL TURNS                       bytes that so many turns with 1,000 bytes of text take, in ten parts";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| -> usize { text.parse().expect("a number") };
    match args[..] {
        ["turns", url, scenario, messages, count] => {
            turns::main(url, scenario, number(messages), number(count))
        }
        ["commits", url, scenario, count] => println!("{}", commits::of_turns(url, scenario, number(count))),
        ["appends", file, each] => appends::at_once(file, number(each)),
        ["rate", url, folder] => println!("{}", appends::rate(url, folder)),
        ["size", url, turns] => println!("{}", size::of_turns(url, number(turns))),
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}
