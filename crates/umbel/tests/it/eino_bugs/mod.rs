//! Mistakes that others made with handlers and tools, and their users paid for: none of them here.

mod events;
mod runs;
mod tools;
