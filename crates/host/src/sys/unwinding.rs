//! A replacement of the compiler's unwinding library, for programs without unwind tables. The compiler's library makes
//! std link its readers of debug information, which such a program does not have.
#![allow(unsafe_code)]

/// Defines the library in the root of a program that is built with `panic = "abort"`: a backtrace has no frames, and an
/// attempt to unwind aborts the process.
#[macro_export]
macro_rules! no_unwinding {
    () => {
        // SAFETY: it has the signature of the Itanium C++ ABI ("Level I: Base ABI") and does not use its arguments.
        #[unsafe(no_mangle)]
        extern "C" fn _Unwind_Backtrace(
            _: *const ::std::ffi::c_void,
            _: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            const END_OF_STACK: ::std::ffi::c_int = 5;
            END_OF_STACK
        }
        $crate::no_unwinding!(
            _Unwind_DeleteException
            _Unwind_FindEnclosingFunction
            _Unwind_ForcedUnwind
            _Unwind_GetCFA
            _Unwind_GetDataRelBase
            _Unwind_GetGR
            _Unwind_GetIP
            _Unwind_GetIPInfo
            _Unwind_GetLanguageSpecificData
            _Unwind_GetRegionStart
            _Unwind_GetTextRelBase
            _Unwind_RaiseException
            _Unwind_Resume
            _Unwind_Resume_or_Rethrow
            _Unwind_SetGR
            _Unwind_SetIP
        );
    };
    ($($function:ident)*) => {$(
        // SAFETY: it uses no argument and does not return, so no caller depends on its signature.
        #[unsafe(no_mangle)]
        extern "C" fn $function() -> ! {
            ::std::process::abort()
        }
    )*};
}
