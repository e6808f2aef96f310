"""The headings under which --help lists options."""

INPUT = "Input"
TARGET = "Device and predictor"
SEVERAL = "Several devices"
ENGINE = "Engine"
LANGUAGE = "Language models"
IMAGES = "Images and films"
TRAINING = "Training"
MEASURING = "Measuring"
SPACE = "Grid"
COST = "Energy, money and carbon"
OUTPUT = "Output"
GENERAL = "General"
ORDER = (
    INPUT,
    TARGET,
    LANGUAGE,
    IMAGES,
    TRAINING,
    ENGINE,
    SEVERAL,
    MEASURING,
    SPACE,
    COST,
    OUTPUT,
    GENERAL,
)
