"""Files in many formats to documents, and back: conversion, checks, statistics, splits."""
