/* What a user's first program does: compiled against the installed files by `cargo xtask smoke`.
 * With an argument it also opens that device. */

#include <stdio.h>
#include <string.h>

#include <vipl.h>
#include <vipl_ext.h>

static int fail(const char *what, VIP_RETURN got) {
  fprintf(stderr, "%s: %d\n", what, (int)got);
  return 1;
}

int main(int argc, char **argv) {
  VIP_NIC_HANDLE nic = NULL;
  VIP_NIC_ATTRIBUTES attributes;
  VIP_RETURN got;
  char text[4096];
  VIP_ULONG length = sizeof text;

  got = vipl_describe("version", text, &length);
  if (got != VIP_SUCCESS || length != strlen(text) + 1) return fail("vipl_describe", got);
  printf("%s\n", text);
  got = VipOpenNic("VINIC", NULL);
  if (got != VIP_INVALID_PARAMETER) return fail("VipOpenNic without room for the handle", got);
  if (argc < 2) return 0;

  got = VipOpenNic(argv[1], &nic);
  if (got != VIP_SUCCESS) return fail("VipOpenNic", got);
  got = VipQueryNic(nic, &attributes);
  if (got != VIP_SUCCESS) return fail("VipQueryNic", got);
  printf("%s: %lu VIs\n", attributes.Name, attributes.MaxVI);
  got = VipCloseNic(nic);
  if (got != VIP_SUCCESS) return fail("VipCloseNic", got);
  return 0;
}
