/* For the wheel (Makefile): functions of threads by the versions that they had before glibc 2.32 and 2.34 moved them
 * from libpthread into libc. They are the same functions, and the library also loads with an older glibc, where Python
 * itself has loaded libpthread. */
#if defined(__x86_64__) && defined(__linux__) && !defined(__ASSEMBLER__)
__asm__(".symver pthread_attr_getstack,pthread_attr_getstack@GLIBC_2.2.5");
__asm__(".symver pthread_attr_getstacksize,pthread_attr_getstacksize@GLIBC_2.2.5");
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_getattr_np,pthread_getattr_np@GLIBC_2.2.5");
__asm__(".symver pthread_key_create,pthread_key_create@GLIBC_2.2.5");
__asm__(".symver pthread_setspecific,pthread_setspecific@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
#endif
