"""Export: a Model in, a file of another framework or engine out, proved equal to the Model."""
