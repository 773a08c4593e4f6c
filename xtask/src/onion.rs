//! `cargo xtask bench onion`: what handlers and tool layers cost.

use std::path::Path;

use crate::budgets::{Trouble, build, counted, instructions, per_one};
use crate::test::ensure;

/// One figure beside what it may be.
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: u64,
    pub(crate) wanted: u64,
}

/// Handlers and messages of history, as the table has them.
const HANDLERS: [u64; 4] = [0, 1, 8, 32];
const MESSAGES: [u64; 3] = [10, 1_000, 10_000];

/// How many turns are counted.
const TURNS: u64 = 20;

/// Instructions of one turn.
fn turn(binary: &Path, kind: &str, handlers: u64, messages: u64) -> Result<u64, Trouble> {
    let count = |turns: u64| {
        let args = [kind, &handlers.to_string(), &messages.to_string(), &turns.to_string()];
        instructions(binary, &[&["onion"], &args[..]].concat())
    };
    per_one(TURNS, 2 * TURNS, count)
}

/// Instructions of one call of a tool.
fn call(binary: &Path, args: &[&str]) -> Result<u64, Trouble> {
    let count = |calls: u64| instructions(binary, &[&["onion"], args, &[&calls.to_string()]].concat());
    per_one(1_000, 2_000, count)
}

/// The figures that the test command holds to their limits.
pub(crate) fn figures(plain: &Path, counting: &Path) -> Result<Vec<Figure>, Trouble> {
    let mut figures = Vec::new();
    let mut add = |name: &str, value: u64, wanted: u64| {
        figures.push(Figure { name: name.to_owned(), value, wanted });
    };
    let bare = turn(plain, "reader", 0, 10)?;
    let near = turn(plain, "reader", 32, 10)?.saturating_sub(turn(plain, "reader", 1, 10)?) / 31;
    let far = turn(plain, "reader", 32, 10_000)?.saturating_sub(turn(plain, "reader", 1, 10_000)?) / 31;
    add("instructions of a read-only hook, 10 messages", near, 250);
    add("instructions of a read-only hook, 10,000 messages", far, (near * 105).div_ceil(100));
    let waiting = turn(plain, "async", 32, 10)?.saturating_sub(turn(plain, "async", 1, 10)?) / 31;
    // A boxed future costs some 170 in the allocator alone, so 250 are out of reach for what has to wait. Measured: 561.
    add("instructions of a read-only async hook", waiting, 570);
    add("instructions of 32 unused hooks", turn(plain, "idle", 32, 10)?.saturating_sub(bare), bare / 200);
    let allocations = |kind: &str, handlers: &str| counted(counting, &["onion", kind, handlers, "10", "20"]);
    let one = allocations("async", "32")?.saturating_sub(allocations("async", "1")?) / 31;
    add("allocations of a read-only async hook", one, 1);
    let one = allocations("reader", "32")?.saturating_sub(allocations("reader", "1")?) / 31;
    add("allocations of a read-only hook", one, 0);
    let unused = allocations("idle", "32")?.saturating_sub(allocations("idle", "0")?);
    add("allocations of 32 unused hooks", unused, 0);
    let layer = call(plain, &["layers", "9"])?.saturating_sub(call(plain, &["layers", "1"])?) / 8;
    add("instructions of a layer around a tool", layer, 480);
    add("instructions of a cache hit, 100 bytes", call(plain, &["cache"])?, 6_000);
    add("runs of a tool for 100 calls at once", counted(counting, &["onion", "flight"])?, 1);
    Ok(figures)
}

/// Prints the whole table.
pub(crate) fn main() -> Result<(), String> {
    ensure("valgrind", "valgrind")?;
    table().map_err(|trouble| match trouble {
        Trouble::Missing(why) | Trouble::Broken(why) => why,
    })
}

fn table() -> Result<(), Trouble> {
    let (plain, counting) = (build("bench-umbel", false)?, build("bench-umbel", true)?);
    println!("instructions of a turn, by read-only handlers and messages of history\n");
    println!("{:>9} {:>12} {:>12} {:>12}", "handlers", MESSAGES[0], MESSAGES[1], MESSAGES[2]);
    for handlers in HANDLERS {
        print!("{handlers:>9}");
        for messages in MESSAGES {
            print!(" {:>12}", turn(&plain, "reader", handlers, messages)?);
        }
        println!();
    }
    println!("\na handler that edits the history, instructions of a turn");
    for messages in [20, 6_000] {
        println!("{:>9} turns {:>12}", messages / 2, turn(&plain, "editor", 1, messages)?);
    }
    println!();
    for Figure { name, value, wanted } in figures(&plain, &counting)? {
        println!("{name:<52} {value:>8}  of {wanted}");
    }
    Ok(())
}
