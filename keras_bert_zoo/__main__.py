"""`python -m keras_bert_zoo` is `keras-bert-zoo`."""

import sys

from keras_bert_zoo.cli import main

sys.exit(main())
