//! What models took and what it costs: prices, sums, and the book that a run keeps.
//!
//! # Layout
//! - [`prices`]: money, and what models cost
//! - [`used`]: sums of tokens and money, by model
//! - `book`: what a run and its session have used so far, and how each answer gets there
//!
//! A [`UsageLedger`](crate::handlers::UsageLedger) has a run keep the book.

pub(crate) mod book;
pub mod prices;
pub mod used;

pub use prices::{LongContext, Money, Price, Prices};
pub use used::{Tally, Used};
