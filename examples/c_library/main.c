/* Classify handwritten digits in C, with a model compiled ahead of time.
 *
 *   sardonyx compile digits_classifier.onnx --shared libdigits.so --header digits.h
 *   cc main.c -L. -ldigits -Wl,-rpath,'$ORIGIN' -o digits
 *   ./digits < images.txt
 *
 * Standard input has images of 8x8 numbers each, from 0 (paper) to 16 (ink); a line is printed for each image. The size
 * of the batch is open in the model: all remaining images, up to BATCH at a time.
 */
#include <stdio.h>
#include <stdlib.h>

#include "digits.h"

#define BATCH 32

static void require(digits_status status, const char *what) {
  if (status != DIGITS_OK) {
    fprintf(stderr, "%s: %s\n", what, digits_message(status));
    exit(1);
  }
}

static void describe(const char *kind, const digits_tensor *tensor) {
  printf("%s %s:", kind, tensor->name);
  for (int32_t axis = 0; axis < tensor->rank; axis++)
    if (tensor->shape[axis] < 0)
      printf(" open");
    else
      printf(" %lld", (long long)tensor->shape[axis]);
  printf("\n");
}

int main(void) {
  for (int32_t i = 0; i < DIGITS_INPUTS; i++) describe("input", digits_input(i));
  for (int32_t i = 0; i < DIGITS_OUTPUTS; i++) describe("output", digits_output(i));

  digits_instance *instance;
  require(digits_create(0, &instance), "create");

  static float images[BATCH][64], probabilities[BATCH][10];
  const void *inputs[DIGITS_INPUTS] = {images};
  void *outputs[DIGITS_OUTPUTS] = {probabilities};
  int64_t had = -1, count;
  do {
    for (count = 0; count < BATCH; count++) {
      size_t read = 0;
      while (read < 64 && scanf("%f", &images[count][read]) == 1) read++;
      if (read < 64) break;
    }
    if (count != had) require(digits_resize(instance, &count), "resize");
    had = count;
    require(digits_run(instance, inputs, outputs), "run");
    for (int64_t i = 0; i < count; i++) {
      int best = 0;
      for (int digit = 1; digit < 10; digit++)
        if (probabilities[i][digit] > probabilities[i][best]) best = digit;
      printf("%d %.6f\n", best, probabilities[i][best]);
    }
  } while (count == BATCH);
  digits_destroy(instance);
  return 0;
}
