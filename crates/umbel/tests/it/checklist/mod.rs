//! The checklist of handlers: a test at least for each of its lines. Names begin with the line's id.

mod compatibility;
mod decisions;
mod errors;
mod goals;
mod instructions;
mod order;
mod surface;
