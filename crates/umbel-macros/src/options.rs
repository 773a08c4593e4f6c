//! What stands in the parentheses of `#[tool(…)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;
use syn::{LitInt, LitStr};

/// The options that are a field of `ToolSpec`, either true or false.
const FLAGS: [&str; 4] = ["long_running", "read_only", "idempotent", "exclusive"];

const UNKNOWN: &str = "unknown option: a tool can have `name = \"…\"`, `long_running`, `confirm`, `read_only`, \
                       `idempotent`, `exclusive` and `timeout_secs = 5`";

/// The options of a tool.
#[derive(Default)]
pub(crate) struct Options {
    /// Its name, if not the function's.
    pub(crate) name: Option<LitStr>,
    /// Statements that set the fields of a `spec`.
    pub(crate) settings: Vec<TokenStream>,
}

impl Options {
    pub(crate) fn parse(tokens: TokenStream) -> syn::Result<Self> {
        let mut options = Self::default();
        let parser = syn::meta::parser(|meta| {
            if meta.path.is_ident("name") {
                let name: LitStr = meta.value()?.parse()?;
                if name.value().is_empty() {
                    return Err(syn::Error::new(name.span(), "the name of a tool cannot be empty"));
                }
                options.name = Some(name);
            } else if meta.path.is_ident("timeout_secs") {
                let seconds: LitInt = meta.value()?.parse()?;
                let duration = quote!(::std::time::Duration::from_secs(#seconds));
                options.settings.push(quote!(spec.timeout = ::std::option::Option::Some(#duration);));
            } else if meta.path.is_ident("confirm") {
                options.settings.push(quote!(spec.confirm = ::umbel::Confirm::Always;));
            } else if FLAGS.iter().any(|flag| meta.path.is_ident(flag)) {
                let flag = &meta.path;
                options.settings.push(quote!(spec.#flag = true;));
            } else {
                return Err(meta.error(UNKNOWN));
            }
            Ok(())
        });
        parser.parse2(tokens)?;
        Ok(options)
    }
}
