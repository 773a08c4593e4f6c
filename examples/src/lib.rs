//! The programs are in `src/bin`. Here are the pages of `docs/` that need more than the library itself: their code is compiled
//! and run with that of the programs.

#[cfg(doctest)]
#[doc = include_str!("../../docs/tutorial.md")]
pub struct Tutorial;

#[cfg(doctest)]
#[doc = include_str!("../../docs/handlers-guide.md")]
pub struct HandlersGuide;

#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
pub struct Testing;
