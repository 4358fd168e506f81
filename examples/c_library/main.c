/* Tell handwritten digits apart, in C alone, with a model compiled ahead of time.
 *
 *   sardonyx set-shape digits_classifier.onnx --batch 1 -o digits.onnx
 *   sardonyx compile digits.onnx --shared libdigits.so --header digits.h
 *   cc main.c -L. -ldigits -Wl,-rpath,'$ORIGIN' -o digits
 *   ./digits < images.txt
 *
 * Standard input holds images of 8x8 numbers each, from 0 (paper) to 16 (ink); for each a line is printed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "digits.h"

static void require(digits_status status, const char *what) {
  if (status != DIGITS_OK) {
    fprintf(stderr, "%s: %s\n", what, digits_message(status));
    exit(1);
  }
}

static void describe(const char *kind, const digits_tensor *tensor) {
  printf("%s %s:", kind, tensor->name);
  for (int32_t axis = 0; axis < tensor->rank; axis++) printf(" %lld", (long long)tensor->shape[axis]);
  printf(", %zu bytes\n", tensor->bytes);
}

int main(void) {
  for (int32_t i = 0; i < DIGITS_INPUTS; i++) describe("input", digits_input(i));
  for (int32_t i = 0; i < DIGITS_OUTPUTS; i++) describe("output", digits_output(i));

  digits_instance *instance;
  require(digits_create(0, &instance), "create");

  float image[64], probabilities[10];
  const void *inputs[DIGITS_INPUTS] = {image};
  void *outputs[DIGITS_OUTPUTS] = {probabilities};
  for (;;) {
    size_t count = 0;
    while (count < 64 && scanf("%f", &image[count]) == 1) count++;
    if (count < 64) break;
    require(digits_run(instance, inputs, outputs), "run");
    int best = 0;
    for (int digit = 1; digit < 10; digit++)
      if (probabilities[digit] > probabilities[best]) best = digit;
    printf("%d %.6f\n", best, probabilities[best]);
  }
  digits_destroy(instance);
  return 0;
}
